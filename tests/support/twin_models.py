"""Models that a planned twin and its eager twin are made of, their inputs and their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SCALE = 1.0  # read by forward of `Blocks`


@dataclass
class Config:
    """An object with fields that forward reads."""

    gain: float = 1.0
    residual: bool = True
    note: str = "as made"


class Activation(nn.Module):
    """A submodule whose function is an attribute of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.function = F.gelu

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Block(nn.Module):
    """Linear, BatchNorm, activation, dropout."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)
        self.act, self.dropout = Activation(), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.act(self.norm(self.linear(x))))


class Blocks(nn.Module):
    """Python attributes that change, drop-path rates in a list, a tied weight, a frozen part, arguments with defaults."""

    names = ("x", "gain", "flip")

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.frozen = nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(False)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 8)
        self.head.weight = self.stem.weight
        self.scale, self.rates, self.config = 0.5, [0.1, 0.3], Config()

    def forward(self, x: Tensor, gain: float = 1.0, flip: bool = False) -> tuple[Tensor, str]:
        h = self.frozen(self.stem(x)) * self.scale * SCALE * gain
        for rate, block in zip(self.rates, self.blocks, strict=True):
            y = block(h) * self.config.gain
            if self.training and rate > 0:
                y = y * torch.empty_like(y[:, :1]).bernoulli_(1 - rate) / (1 - rate)
            h = h + y if self.config.residual else y
        h = self.head(h)
        return (-h if flip else h), self.config.note


class Attention(nn.Module):
    """A loss in a dict, an optional mask and a weight that may differ at every call."""

    names = ("x", "mask", "weight")

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm, self.dropout, self.act = nn.LayerNorm(8), nn.Dropout(0.1), Activation()
        self.scale = 0.35

    def forward(self, x: Tensor, mask: Tensor | None = None, weight: float = 1.0) -> dict[str, Any]:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(1, 2) * self.scale
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, :], -1e4)
        h = self.act(self.out(self.dropout(scores.softmax(-1)) @ v)) + x
        return {"loss": h.float().square().mean() * weight, "logits": h, "note": None}


class FromDict(nn.Module):
    """One argument, a dict, with a mask that may be missing and a float."""

    names = ("batch",)

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), Activation(), nn.Dropout(0.3), nn.Linear(16, 8))
        self.register_buffer("seen", torch.zeros(8))
        self.config = Config()

    def forward(self, batch: dict[str, Any]) -> Tensor:
        h = self.inner(batch["x"]) * batch["weight"] * self.config.gain
        if batch.get("mask") is not None:
            h = h * batch["mask"][..., None]
        with torch.no_grad():
            self.seen += h.detach().flatten(0, -2).mean(0).to(self.seen.dtype)
        return h


class Noise(torch.autograd.Function):
    """Multiplies by random numbers of its own, in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        noise = torch.rand_like(x)
        ctx.save_for_backward(noise)
        return x * noise

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]


class Noisy(nn.Module):
    """A custom autograd.Function, and a tensor hook that uses a random tensor of forward."""

    names = ("x",)

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.dropout, self.act = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.2), Activation()

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.a(x))
        y = self.dropout(self.b(Noise.apply(h)))
        noise = torch.rand_like(h)  # the last draw, which backward alone uses
        if h.requires_grad:
            h.register_hook(lambda g: g * noise)
        return y


class Overwrites(nn.Module):
    """Writes over its input, and over what it makes."""

    names = ("x",)

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.dropout = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.2, inplace=True)
        self.scale = 0.5

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(self.scale)
        return self.b(self.dropout(self.a(x)).add_(1).relu())


class Images(nn.Module):
    """Convolutions, BatchNorm, a module that runs twice, a count of calls in a buffer."""

    names = ("x",)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.act, self.dropout = nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout2d(0.2)
        self.head = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.rates = [0.2]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.stem(x)
        for _ in range(2):
            h = h + F.dropout(self.act(self.norm(self.conv(h))), self.rates[0], self.training)
        return self.head(self.dropout(h).mean((2, 3)))


class Counts(nn.Module):
    """Python side effects in forward: a counter, and features in a list."""

    names = ("x",)

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.dropout = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.2)
        self.calls, self.features = 0, []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.a(x).tanh()
        self.features.append(h.shape[0])
        return self.b(self.dropout(h))


MODELS: dict[str, type[nn.Module]] = {
    m.__name__: m for m in (Blocks, Attention, FromDict, Noisy, Overwrites, Images, Counts)
}


@dataclass
class Sizes:
    """What the next calls' inputs are like."""

    batch: int = 4
    length: int = 5
    strided: bool = False  # not contiguous
    requires_grad: bool = False
    masked: bool = True
    vary: bool = False  # another float argument at every call
    style: int = 0  # how arguments are passed
    autocast: bool = False
    set_to_none: bool = True


def inputs(
    model: nn.Module, s: Sizes, dtype: torch.dtype, seed: int, last: int = 8
) -> tuple[list[Tensor], dict[str, Any]]:
    """(the floating-point tensors, the arguments by name); the same for the same seed."""
    g = torch.Generator().manual_seed(seed)
    kind = type(model)
    shape = {Images: (s.batch, last // 4, 4 + s.length, 8), Blocks: (s.batch, last)}.get(
        kind, (s.batch, s.length, last)
    )
    x = torch.randn(shape[::-1] if s.strided else shape, generator=g, dtype=torch.float64).to(dtype)
    x = x.permute(*range(x.ndim - 1, -1, -1)) if s.strided else x
    leaf = x.requires_grad_(s.requires_grad)
    x = leaf * 1 if kind is Overwrites and s.requires_grad else leaf  # a leaf that requires grad cannot be written over
    weight = 1.0 + 0.125 * (seed % 7) if s.vary else 1.0
    mask = (torch.rand(shape[:2], generator=g) > 0.3) if s.masked else None
    if kind is Blocks:
        return [leaf], {"x": x, "gain": weight, "flip": False}
    if kind is Attention:
        return [leaf], {"x": x, "mask": mask, "weight": weight}
    if kind is FromDict:
        return [leaf], {"batch": {"x": x, "weight": weight} | ({} if mask is None else {"mask": mask})}
    return [leaf], {"x": x}


DEFAULTS = {"gain": 1.0, "flip": False, "mask": None, "weight": 1.0}


def called(model: Callable[..., Any], given: dict[str, Any], style: int) -> Any:
    """The call, with what has its default left out (0, 1), as keywords (1), in another order (2), all positional (3)."""
    if style % 4 in (0, 1):
        first = next(iter(given))
        given = {k: v for k, v in given.items() if k == first or v is not DEFAULTS[k] and v != DEFAULTS[k]}
        positional = style % 4 == 0
        return model(given[first], **{k: v for k, v in given.items() if k != first}) if positional else model(**given)
    return model(**dict(reversed(given.items()))) if style % 4 == 2 else model(*given.values())


def loss_of(result: Any) -> Tensor:
    if isinstance(result, dict):
        return result["loss"]
    result = result[0] if isinstance(result, tuple) else result
    return result.float().square().sum() if result.dtype != torch.float64 else result.square().sum()


def scaled(result: Any, by: float) -> Any:
    """A module's result with its floating-point tensors multiplied."""
    if isinstance(result, Tensor):
        return result * by if result.is_floating_point() else result
    if isinstance(result, dict):
        return {k: scaled(v, by) for k, v in result.items()}
    return tuple(scaled(v, by) for v in result) if isinstance(result, tuple) else result


def ran_planned(result: Any) -> bool:
    """Whether a plan made this result: its autograd graph holds the plan's node."""
    todo = [t.grad_fn for t in tensors_in(result) if t.grad_fn is not None]
    seen = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if "Boundary" in type(node).__name__:
            return True
        todo += [n for n, _ in node.next_functions if n is not None]
    return False


def tensors_in(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, dict | list | tuple):
        for v in x.values() if isinstance(x, dict) else x:
            yield from tensors_in(v)
