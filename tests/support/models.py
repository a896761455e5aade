"""Small models that nobody tuned the library for: name -> a function that returns (model, sample).

Most return one scalar loss, so that the step's peak is the plan's and not the loss function's; activations are some
hundred KiB, so that a few bytes of bookkeeping are far below a per cent of them.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import rekindle.zoo as zoo

torch.set_num_threads(1)  # on tensors this small more threads only wait for each other

Made = tuple[nn.Module, Any]
MODELS: dict[str, Callable[[], Made]] = {}
HF: dict[str, Callable[[], Made]] = {}
CONTEXTS: dict[str, Callable[[], Any]] = {}  # what a model is called under


def make(name: str) -> Made:
    """The model and its sample, the same for the same name, in train mode; the global random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model, sample = (MODELS | HF)[name]()
    return model.train(), sample


def context(name: str) -> contextlib.AbstractContextManager[Any]:
    """What the model is called under."""
    return CONTEXTS.get(name, contextlib.nullcontext)()


def call(model: nn.Module, sample: Any) -> Any:
    """The result of the model for a sample: a tensor, positional arguments or keyword arguments."""
    if isinstance(sample, dict):
        return model(**sample)
    return model(*sample) if isinstance(sample, tuple) else model(sample)


def tensors(x: Any) -> Iterator[Tensor]:
    """Every tensor in a nested result, in order."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, dict):
        for v in x.values():
            yield from tensors(v)
    elif isinstance(x, list | tuple):
        for v in x:
            yield from tensors(v)
    elif hasattr(x, "__dataclass_fields__"):
        for k in x.__dataclass_fields__:
            yield from tensors(getattr(x, k))


def loss_of(result: Any) -> Tensor:
    """The loss: under its key, or the scalar that comes first; else a sum over the squares of all that requires grad
    (scalars as they are)."""
    if isinstance(result, dict) and isinstance(result.get("loss"), Tensor):
        return result["loss"]
    parts = [t for t in tensors(result) if t.requires_grad]
    if isinstance(result, tuple | Tensor) and parts[0].ndim == 0:
        return parts[0]
    return sum((t if t.ndim == 0 else t.abs().square().sum()) for t in parts)  # type: ignore[return-value]


def entry(build: Callable[[], Made]) -> Callable[[], Made]:
    MODELS[build.__name__] = build
    return build


class Mean(nn.Module):
    """The mean of the squares of what a module returns: a loss without a target."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, *args: Tensor) -> Tensor:
        out = self.inner(*args)
        return (out[0] if isinstance(out, tuple) else out).square().mean()


# --- vision -----------------------------------------------------------------------------------------------------------


@entry
def cnn() -> Made:
    def block(i: int, o: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.Dropout(0.2)]

    body = nn.Sequential(*block(3, 8), *block(8, 8), nn.MaxPool2d(2), *block(8, 16), nn.Flatten(), nn.Linear(1024, 5))
    return Mean(body), torch.rand(4, 3, 16, 16)


@entry
def unet() -> Made:
    model, sample = zoo.load("unet", 2, image=16, width=8, depth=2)
    return model, sample


@entry
def unet_with_input_gradient() -> Made:
    model, sample = zoo.load("unet", 2, image=16, width=8, depth=2, input_grad=True)
    return Mean(model), sample


@entry
def inplace_cnn() -> Made:
    """ReLU and residual additions in place, and a block with BatchNorm that runs twice."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, padding=1)
            self.shared, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for _ in range(2):
                y = self.shared(x)
                y += x
                x = F.relu(self.norm(y).mul_(0.5), inplace=True)
            x = self.stem.weight.sum() * x
            return F.hardswish(x.add_(0.1), inplace=True).square().mean()

    return Net(), torch.rand(4, 3, 16, 16)


@entry
def depthwise_channels_last() -> Made:
    body = nn.Sequential(
        nn.Conv2d(4, 16, 3, padding=1, groups=4), nn.BatchNorm2d(16), nn.SiLU(inplace=True),
        nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.Hardtanh(0, 6, inplace=True),
        nn.Conv2d(16, 8, 1), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3),
    )  # fmt: skip
    model = Mean(body).to(memory_format=torch.channels_last)
    return model, torch.rand(4, 4, 16, 16).to(memory_format=torch.channels_last)


@entry
def other_norms() -> Made:
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU(), nn.Conv2d(8, 8, 3, padding=1),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True), nn.LeakyReLU(0.1, inplace=True),
        nn.ConvTranspose2d(8, 4, 2, stride=2), nn.LocalResponseNorm(2), nn.Softplus(), nn.PixelUnshuffle(2),
        nn.Conv2d(16, 4, 3), nn.LayerNorm([4, 14, 14]), nn.PReLU(),
    )  # fmt: skip
    return Mean(body), torch.rand(2, 3, 16, 16)


@entry
def random_layers() -> Made:
    """Every kind of noise, inside and between the layers."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
            self.drop2d, self.alpha = nn.Dropout2d(0.3), nn.AlphaDropout(0.2)
            self.rrelu = nn.RReLU()

        def forward(self, x: Tensor) -> Tensor:
            x = x + 0.1 * torch.randn_like(x)
            x = self.drop2d(self.rrelu(self.a(x)))
            keep = torch.bernoulli(torch.full((x.shape[0], 1, 1, 1), 0.8))  # stochastic depth
            x = x + keep * self.alpha(self.b(x).tanh())
            gate = F.gumbel_softmax(x.flatten(2).mean(2), tau=0.7)
            noise = torch.empty_like(gate).uniform_(-0.01, 0.01) + torch.rand(gate.shape)
            return (x * (gate + noise)[:, :, None, None]).square().mean()

    return Net(), torch.rand(4, 3, 16, 16)


@entry
def frozen_backbone() -> Made:
    """Early layers and one late weight frozen; BatchNorm still follows the data, as is often forgotten."""
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8),
        nn.ReLU(), nn.Dropout(0.1), nn.Conv2d(8, 8, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(2048, 4),
    )  # fmt: skip
    body[:5].requires_grad_(False)
    body[10].weight.requires_grad_(False)
    return Mean(body), torch.rand(4, 3, 16, 16)


# --- sequences --------------------------------------------------------------------------------------------------------


@entry
def gpt() -> Made:
    return zoo.load("gpt", 2, n_layer=2, d=32, heads=2, length=32, vocab=60, dropout=0.1)


@entry
def lstm_unrolled() -> Made:
    model, sample = zoo.load("lstm_unrolled", 8, length=12, features=16, hidden=32)
    return Mean(model), sample


@entry
def lstm_fused() -> Made:
    model, sample = zoo.load("lstm", 8, length=12, features=16, hidden=32, layers=1)
    return Mean(model), sample


@entry
def lstm_bidirectional() -> Made:
    return Mean(nn.LSTM(16, 24, 2, bidirectional=True, dropout=0.2)), torch.rand(12, 8, 16)


@entry
def gru() -> Made:
    return Mean(nn.GRU(16, 24, 2, batch_first=True, dropout=0.2)), torch.rand(8, 12, 16, requires_grad=True)


@entry
def rnn_cells() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.gru = nn.RNNCell(16, 24), nn.GRUCell(24, 24)

        def forward(self, x: Tensor) -> Tensor:
            h = g = x.new_zeros(x.shape[0], 24)
            losses = []
            for step in x.unbind(1):
                h = self.cell(step, h)
                g = self.gru(h, g)
                losses.append(g.square().mean())
            return torch.stack(losses).mean()

    return Net(), torch.rand(16, 10, 16)


@entry
def attention() -> Made:
    """nn.MultiheadAttention with its weights, a key padding mask and dropout."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True, add_bias_kv=True)

        def forward(self, x: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
            y, weights = self.attention(x, x, x, key_padding_mask=padding)
            return y.square().mean() + weights.square().sum(), weights

    padding = torch.zeros(4, 24, dtype=torch.bool)
    padding[:, 20:] = True
    return Net(), (torch.rand(4, 24, 16), padding)


@entry
def transformer_encoder() -> Made:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, activation="gelu")
    return Mean(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)), torch.rand(4, 24, 16)


@entry
def transformer() -> Made:
    model = nn.Transformer(16, 2, 1, 1, 32, dropout=0.1, batch_first=True)
    return Mean(model), (torch.rand(4, 16, 16), torch.rand(4, 12, 16))


@entry
def embedding_bags() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(50, 32, mode="mean")
            self.top = nn.EmbeddingBag(50, 32, mode="sum", padding_idx=0)
            self.one = nn.Embedding(50, 32, padding_idx=0)
            self.head = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 1))

        def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
            per = self.one(ids).cumsum(0)[offsets]
            x = torch.cat([self.bag(ids, offsets), self.top(ids, offsets), per], 1)
            return F.binary_cross_entropy_with_logits(self.head(x).squeeze(1), torch.ones(len(offsets)))

    return Net(), (torch.randint(50, (256,)), torch.arange(0, 256, 4))


# --- how modules are written ------------------------------------------------------------------------------------------


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
            table = torch.zeros(len(x), 16).index_put((order,), out * ranked[:, None])
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


# --- numbers ----------------------------------------------------------------------------------------------------------


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


# --- transformers -----------------------------------------------------------------------------------------------------


def hf(build: Callable[[], Made]) -> Callable[[], Made]:
    HF[build.__name__] = build
    return build


def _ids(batch: int = 2, length: int = 24, vocab: int = 60) -> Tensor:
    return torch.randint(3, vocab, (batch, length))


def _transformers() -> Any:
    import transformers

    return transformers


@hf
def gpt2() -> Made:
    t = _transformers()
    config = t.GPT2Config(vocab_size=60, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    ids = _ids()
    return t.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


@hf
def llama() -> Made:
    t = _transformers()
    config = t.LlamaConfig(
        vocab_size=60, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    ids = _ids()
    return t.LlamaForCausalLM(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


@hf
def bert() -> Made:
    t = _transformers()
    config = t.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    ids = _ids()
    mask = torch.ones_like(ids)
    mask[1, 18:] = 0
    return t.BertForMaskedLM(config), {"input_ids": ids, "attention_mask": mask, "labels": ids}


@hf
def t5() -> Made:
    t = _transformers()
    config = t.T5Config(
        vocab_size=60, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0,
    )  # fmt: skip
    return t.T5ForConditionalGeneration(config), {"input_ids": _ids(), "labels": _ids(length=12)}


@hf
def vit() -> Made:
    t = _transformers()
    config = t.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8,
        hidden_dropout_prob=0.1, num_labels=3,
    )  # fmt: skip
    return t.ViTForImageClassification(config), {
        "pixel_values": torch.rand(4, 3, 32, 32),
        "labels": torch.tensor([0, 1, 2, 0]),
    }


@hf
def mixtral() -> Made:
    t = _transformers()
    config = t.MixtralConfig(
        vocab_size=60, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, num_local_experts=4, num_experts_per_tok=2,
        output_router_logits=True,
    )  # fmt: skip
    ids = _ids()
    return t.MixtralForCausalLM(config), {"input_ids": ids, "labels": ids}
