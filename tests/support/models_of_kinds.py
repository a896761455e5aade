"""Modules whose forward sets attributes, hooks or buffers, computes in other numbers, or calls functions that seldom meet."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model_tables import CONTEXTS, Made, Mean, entry


@entry
def unused_parameters() -> Made:
    """Parameters that no result depends on, only a detached one does, or only a result without loss."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(32, 64), nn.Linear(5, 5)
            self.cut = nn.Linear(32, 64)
            self.scalar = nn.Parameter(torch.tensor(2.0))
            self.none = nn.Parameter(torch.empty(0, 3))

        def forward(self, x: Tensor) -> Tensor:
            h = torch.cat([self.used(x) * self.scalar, self.cut(x).detach()], 1)
            return h.relu().square().mean() + self.none.sum()

    return Net(), torch.rand(128, 32)


@entry
def own_buffers() -> Made:
    """Buffers written in place: a step counter, a running mean that forward reads before and after, a queue."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 64)
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))
            self.register_buffer("mean", torch.zeros(64))
            self.register_buffer("queue", torch.zeros(4, 64), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            h = self.a(x) - self.mean
            self.mean.lerp_(h.detach().mean(0), 0.1)
            h = self.b(h.tanh()) + self.mean * h
            self.queue.copy_(torch.cat([h.detach()[:1], self.queue[:-1]]))
            return (h @ self.queue.t()).square().mean() / self.steps

    return Net(), torch.rand(128, 32)


@entry
def writes_over_its_input() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 64), nn.Linear(64, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x + 1).tanh()
            x.mul_(0.9)
            return (self.b(h) - x).square().mean()

    return Net(), torch.rand(512, 2)


@entry
def results_are_arguments() -> Made:
    """Results that are an argument, a view of one, a parameter, a view of a parameter and a buffer."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 64), nn.Linear(64, 2)
            self.register_buffer("table", torch.rand(8))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = self.b(self.a(x).tanh())
            return y, x, x[1:], self.a.weight, self.b.weight.t(), self.table, y.t(), y.detach(), self.b.bias.detach()

    return Net(), torch.rand(512, 8)


@entry
def attributes_set_in_forward() -> Made:
    """State in the writing of most custom layers: a buffer and attributes that forward sets to new tensors."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 64), nn.Linear(64, 8)
            self.register_buffer("mean", torch.zeros(8))
            self.hidden = torch.zeros(8)
            self.calls, self.last = 0, torch.zeros(())

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            y = self.b((self.a(x + self.hidden)).tanh()) - self.mean
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
            self.hidden = y.detach()[-1].clone()
            loss = y.square().mean()
            self.last = loss.detach()
            return loss

    return Net(), torch.rand(256, 8)


@entry
def hooks_inside() -> Made:
    """Hooks of submodules that change what they see."""
    body = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32), nn.Softplus())
    body[0].register_forward_hook(lambda m, args, out: out * 2)
    body[2].register_forward_pre_hook(lambda m, args: (args[0] + 0.1,))
    body[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 3,))
    return Mean(body), torch.rand(128, 32)


@entry
def functional_transforms() -> Made:
    """vmap, grad and functional_call in forward; a gradient penalty."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))

        def forward(self, x: Tensor) -> Tensor:
            slope = torch.func.vmap(torch.func.grad(lambda r: self.body(r).sum()))(x)
            twice = {k: 2 * p for k, p in self.body.named_parameters()}
            y = torch.func.functional_call(self.body, twice, (x,))
            z = x.detach().requires_grad_()
            (inner,) = torch.autograd.grad(self.body(z).sum(), z, create_graph=True)
            return (slope.norm(dim=1) - 1).square().mean() + y.mean() + inner.square().mean()

    return Net(), torch.rand(128, 16)


@entry
def linear_algebra() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.eye(24) + 0.1 * torch.rand(24, 24))
            self.scale = nn.Parameter(torch.rand(24) + 1)

        def forward(self, x: Tensor) -> Tensor:
            k = self.w @ self.w.mT + torch.diag(self.scale)
            chol = torch.linalg.cholesky(k)
            y = torch.linalg.solve_triangular(chol, x.mT, upper=False) + torch.linalg.solve(k, x.mT)
            q, r = torch.linalg.qr(self.w)
            values = torch.linalg.eigvalsh(k)
            return (
                y.square().mean()
                + torch.linalg.inv(k).diagonal().sum()
                + q.sum()
                + r.square().mean()
                + values.log().sum()
            )

    return Net(), torch.rand(256, 24)


@entry
def shared_modules() -> Made:
    """Modules under two names: a layer repeated, BatchNorm in both branches, an encoder that decodes too."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.GELU())
            self.layers = nn.ModuleList([layer, layer, nn.Linear(32, 32)])
            self.encoder, self.decoder = nn.Linear(32, 64), nn.Linear(64, 32)
            self.decoder.weight = nn.Parameter(self.decoder.weight.detach().clone())
            self.again = self.encoder

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + layer(x)
            return (self.decoder(self.encoder(x).tanh()) + self.again(x).mean()).square().mean()

    return Net(), torch.rand(128, 32)


@entry
def spectral() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(8, 17, dtype=torch.complex64))
            self.mix = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            z = torch.fft.rfft(x) * self.weight
            y = torch.fft.irfft(z * z.conj().resolve_conj(), n=32)
            return self.mix(y.transpose(1, 2)).tanh().square().mean() + z.abs().mean() + z.imag.square().mean()

    return Net(), torch.rand(16, 8, 32)


@entry
def double_precision() -> Made:
    body = nn.Sequential(nn.Linear(32, 64), nn.Softsign(), nn.Linear(64, 64), nn.LogSoftmax(-1)).double()
    return Mean(body), torch.rand(128, 32, dtype=torch.float64, requires_grad=True)


@entry
def half_precision() -> Made:
    body = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.1), nn.Linear(64, 64))
    return Mean(body.bfloat16()), torch.rand(128, 32, dtype=torch.bfloat16)


@entry
def autocast() -> Made:
    body = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.1), nn.Linear(64, 64))
    return Mean(body), torch.rand(128, 32)


CONTEXTS["autocast"] = lambda: torch.autocast("cpu", torch.bfloat16)


@entry
def autocast_inside() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.conv = nn.Linear(16, 16), nn.Conv1d(8, 8, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                x = self.shared(self.conv(self.shared(x)))
            return x.float().log_softmax(-1).square().mean()

    return Net(), torch.rand(16, 8, 16)


@entry
def many_functions() -> Made:
    """Functions that seldom meet: einsum, cdist, interpolate, unfold, grid_sample, pad, logsumexp, std, where."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1)
            self.flow = nn.Conv2d(4, 2, 3, padding=1)
            self.w = nn.Parameter(torch.rand(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            h = F.pad(self.conv(x), (1, 1, 1, 1), mode="reflect")
            h = F.interpolate(h, size=(12, 12), mode="bilinear", align_corners=False)
            grid = self.flow(h).permute(0, 2, 3, 1).tanh()
            h = F.grid_sample(h, grid, align_corners=False)
            h = torch.einsum("nchw,cd->ndhw", h, self.w)
            u = F.unfold(h, 3).transpose(1, 2)
            d = torch.cdist(u, u[:, :10])
            s = torch.where(d > d.mean(), d, d.logsumexp(1, keepdim=True)) + u.std(-1, keepdim=True)
            m, _ = s.max(1)
            v = torch.linalg.vector_norm(u, dim=1) + torch.maximum(u, -u).sum(1)
            p = h.flatten(1).amin(1)
            t = torch.triu(torch.linalg.matrix_exp(0.1 * self.w)).sum() + torch.linalg.slogdet(torch.eye(4) + self.w)[1]
            return m.mean() + v.mean() + p.mean() + t + F.huber_loss(s.roll(1, 0), s.flip(1))

    return Net(), torch.rand(2, 3, 10, 10)
