"""Modules written in the ways people write them: nested results, shared and wrapped parts, functions of their own."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from model_tables import Made, Mean, entry


class Halves(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass
class Report:
    value: Tensor
    halves: Halves
    count: Tensor
    detached: Tensor
    note: str
    missing: None = None


@entry
def nested_results() -> Made:
    """A dataclass with a named tuple, an integer tensor, a detached one, constants, and one tensor met twice."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))

        def forward(self, x: Tensor, *, scale: float = 1.0) -> dict[str, Any]:
            y = self.body(x) * scale
            left, right = y.chunk(2, dim=-1)
            report = Report(y, Halves(left, right), y.argmax(-1), y.detach().exp(), "ok")
            return {"report": report, "again": [y, {"x": x, "n": 3}], 7: (y > 0).sum()}

    return Net(), {"x": torch.rand(128, 32), "scale": 0.5}


@entry
def several_losses() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.heads = nn.ModuleList(nn.Linear(64, k) for k in (3, 1))

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            h = self.body(x)
            a, b = (head(h) for head in self.heads)
            ce, mse = F.cross_entropy(a, y), F.mse_loss(b.squeeze(1), y.float())
            return {"ce": ce, "mse": mse, "penalty": h.abs().mean()}

    return Net(), {"x": torch.rand(128, 32), "y": torch.randint(3, (128,))}


@entry
def plain_tensor_attributes() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 32)
            self.mask = torch.rand(64) > 0.3
            self.table = {"scale": torch.rand(32)}
            self.scale = torch.tensor(1.5)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x).relu() * self.mask
            return (self.b(h) * self.scale + self.table["scale"]).square().mean()

    return Net(), torch.rand(128, 32)


@entry
def reparametrised() -> Made:
    """Weight norm in both writings, and spectral norm, which changes its buffers in each forward."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        old = nn.utils.weight_norm(nn.Linear(16, 8))
    body = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(8, 16)), nn.ReLU(), old, nn.ReLU(),
        parametrizations.spectral_norm(nn.Linear(8, 16)), nn.ELU(), nn.Linear(16, 2),
    )  # fmt: skip
    return Mean(body), torch.rand(512, 8)


@entry
def low_rank_adapters() -> Made:
    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear, rank: int):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Linear(base.in_features, rank, bias=False)
            self.up = nn.Linear(rank, base.out_features, bias=False)
            self.drop = nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.up(self.down(self.drop(x))) * 2.0

    body = nn.Sequential(
        nn.Linear(32, 64).requires_grad_(False), nn.GELU(), Adapted(nn.Linear(64, 64), 4),
        nn.LayerNorm(64).requires_grad_(False), nn.GELU(), Adapted(nn.Linear(64, 64), 4), nn.Softmax(-1),
    )  # fmt: skip
    return Mean(body), torch.rand(128, 32)


@entry
def checkpointed_inside() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32)) for _ in range(3)
            )

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = x + torch_checkpoint(block, x, use_reentrant=False)
            return x.square().mean()

    return Net(), torch.rand(128, 32)


@entry
def views_of_views() -> Made:
    """Writes through views, a view of a view that is written to later, results that are views of each other."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.a(x)
            rows = h.view(16, 8, 64)
            top = rows[:8].transpose(0, 1)
            top[..., :32] *= 2.0
            rows[8:, 0].zero_()
            top[:, 1:, 3:50].sigmoid_()
            h = self.b(h.tanh())
            h[:, ::2] += h[:, 1::2].detach()
            h.t()[:16].mul_(3.0)
            part = h.reshape(2, 64, 64)[1, :4, :8]
            return part.t(), part.unsqueeze(0).expand(3, -1, -1)

    return Net(), torch.rand(128, 32)


@entry
def mixture_of_experts() -> Made:
    """Routing by hand: topk, sort, cumsum, scatter, gather, index_put, one_hot and dense masks."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(16, 4)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)) for _ in range(4)
            )

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            p = self.gate(x).softmax(-1)
            weight, which = p.topk(2, dim=-1)
            gates = torch.zeros_like(p).scatter(1, which, weight / weight.sum(-1, keepdim=True))
            place = (F.one_hot(which, 4).sum(1).cumsum(0) - 1).clamp(min=0)
            gates = gates * (place < 48)
            out = sum(gates[:, i : i + 1] * e(x) for i, e in enumerate(self.experts))
            ranked, order = out.norm(dim=-1).sort(descending=True)
            table = torch.zeros(len(x), 16, device=x.device).index_put((order,), out * ranked[:, None])
            table = table.index_add(0, order[:8], out[:8]).masked_fill(table > 3, 0.0)
            best = torch.gather(table, 1, which).amax(1)
            balance = (p.mean(0) * gates.gt(0).float().mean(0)).sum()
            return best.mean() + table.square().mean() + balance, which

    return Net(), torch.rand(64, 16)


class _Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        ctx.bound = bound
        out = x.clamp(-bound, bound)
        hits = (x != out).sum()
        ctx.mark_non_differentiable(hits)
        return out, hits

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 2 * ctx.bound) + 0.01 * x, None


@entry
def own_function() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h, hits = _Clip.apply(self.a(x), 0.2)
            h, more = _Clip.apply(self.b(h).tanh(), 0.1)
            return self.c(h).square().mean(), hits + more

    return Net(), torch.rand(128, 32)


@entry
def gradient_hook_inside() -> Made:
    """A hook on an activation that changes its gradient, a detached branch, a teacher under no_grad."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(32, 64), nn.Tanh())
            self.teacher = copy.deepcopy(self.body).requires_grad_(False)
            self.head = nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x)
            if h.requires_grad:
                h.register_hook(lambda g: g.clamp(-1e-4, 1e-4) * 2)
            with torch.no_grad():
                t = self.teacher(x + 0.01 * torch.randn_like(x))
            return F.mse_loss(h, t) + self.head(h.detach()).square().mean()

    return Net(), torch.rand(128, 32)
