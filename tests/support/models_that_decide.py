"""Small models whose forward reads tensors, draws, routes or leaves layers out, each in another way: none is captured whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint as by_hand

WORDS, WIDTH = 50, 48
Made = tuple[nn.Module, Any]
DECIDING: dict[str, Callable[[], Made]] = {}


def model(kind: type[nn.Module]) -> type[nn.Module]:
    DECIDING[kind.__name__] = lambda: (kind().train(), (torch.randint(0, WORDS, (4, 32)),))
    return kind


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Words(nn.Module):
    """Blocks between an embedding and a head; subclasses say how the blocks are called. The loss is read at the end."""

    def __init__(self, block: Callable[[], nn.Module] = MLP, layers: int = 3):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.blocks = nn.ModuleList(block() for _ in range(layers))

    def body(self, h: torch.Tensor) -> torch.Tensor:
        for b in self.blocks:
            h = b(h)
        return h

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.head(self.body(self.embed(x))).flatten(0, 1), x.flatten())
        self.last = loss.item()
        return loss


@model
class ScalesDown(Words):
    """Loops for as long as a norm is large."""

    def body(self, h: torch.Tensor) -> torch.Tensor:
        for b in self.blocks:
            h = b(h)
            while h.norm() > 10:
                h = h * 0.7
            if h.max() > 3:
                h = h / h.max().item()
        return h


@model
class LeavesEarly(Words):
    def body(self, h: torch.Tensor) -> torch.Tensor:
        for b in self.blocks:
            h = b(h)
            if h.mean() > 0.02:
                break
        return h


@model
class SkipsByPython(Words):
    """Stochastic depth by Python's and NumPy's generators."""

    def body(self, h: torch.Tensor) -> torch.Tensor:
        for b in self.blocks:
            if random.random() < 0.3 or np.random.rand() < 0.1:
                continue
            h = b(h)
        return h


@model
class DistinctWords(Words):
    """The blocks see the distinct words alone, whose number changes with the data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        distinct, place = torch.unique(x, return_inverse=True)
        return F.cross_entropy(self.head(self.body(self.embed(distinct))[place]).flatten(0, 1), x.flatten())


@model
class SparseGradients(Words):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, sparse=True)


class Quantised(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = (self.weight.abs().max() / 127).item()
        return F.linear(x, torch.fake_quantize_per_tensor_affine(self.weight, scale, 0, -128, 127), self.bias)


class QuantisedMLP(MLP):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = Quantised(WIDTH, 4 * WIDTH), Quantised(4 * WIDTH, WIDTH)


@model
class FakeQuantised(Words):
    def __init__(self) -> None:
        super().__init__(QuantisedMLP)


@model
class FromADict(Words):
    """Picks a block from a plain dict, by a value."""

    def __init__(self) -> None:
        super().__init__()
        self.table = {"up": self.blocks[0], "down": self.blocks[1]}

    def body(self, h: torch.Tensor) -> torch.Tensor:
        return super().body(self.table["up" if h.mean() > 0 else "down"](h))


class Holder(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner, self.own = inner, MLP()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own(self.inner(self.inner(x)))


@model
class Shared(Words):
    """A submodule of two parents, called twice by each, and weights that parts share."""

    def __init__(self) -> None:
        super().__init__(layers=0)
        inner = MLP()
        self.blocks = nn.ModuleList([Holder(inner), Holder(inner), Holder(MLP())])
        self.blocks[2].own.up.weight = self.blocks[0].own.up.weight
        self.head.weight = self.embed.weight


@model
class Hooked(Words):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[0].register_forward_hook(lambda m, args, out: out * 1.5)
        self.blocks[1].register_forward_pre_hook(lambda m, args: (args[0] + 0.25,))
        self.blocks[1].register_full_backward_hook(lambda m, ours, theirs: (ours[0] * 2,))
        self.blocks[2].up.register_forward_hook(lambda m, args, out: out + torch.rand(()))


@model
class PartlyFrozen(Words):
    def __init__(self) -> None:
        super().__init__()
        self.embed.requires_grad_(False)
        self.blocks[0].requires_grad_(False)
        self.blocks[2].up.weight.requires_grad_(False)


@model
class UnderAutocast(Words):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


@model
class WithATeacher(Words):
    """Calls a block without gradients too."""

    def body(self, h: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            taught = self.blocks[0](h)
        return super().body(h) + taught


@dataclass
class Result:
    hidden: torch.Tensor
    extra: torch.Tensor


class GivesObject(MLP):
    def forward(self, x: torch.Tensor) -> Result:
        y = super().forward(x)
        return Result(y, y.pow(2).mean())


class GivesDict(MLP):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = super().forward(x)
        return {"hidden": y, "extra": y.pow(2).mean(), "weight": 3, "nothing": None}


@model
class Structured(Words):
    """Parts that give dicts and dataclasses."""

    def __init__(self) -> None:
        super().__init__(layers=0)
        self.blocks = nn.ModuleList([GivesObject(), GivesDict(), GivesObject(), GivesDict()])

    def body(self, h: torch.Tensor) -> torch.Tensor:
        extra = h.new_zeros(())
        for first, second in zip(self.blocks[::2], self.blocks[1::2], strict=True):
            a = first(h)
            b = second(a.hidden)
            h, extra = b["hidden"], extra + a.extra + b["extra"] * b["weight"]
        return h + extra


@model
class RunsAgainByHand(Words):
    def body(self, h: torch.Tensor) -> torch.Tensor:
        for b in self.blocks:
            h = by_hand(b, h, use_reentrant=False)
        return h


class Projection(nn.Module):
    """Gives a linear layer's result, which is a view, and a second tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.norm(x)
        return self.down(F.gelu(self.up(x))), x


@model
class MasksInPlace(Words):
    """Writes to the result of a part, as wav2vec2 masks spans in time."""

    def __init__(self) -> None:
        super().__init__(Projection)

    def body(self, h: torch.Tensor) -> torch.Tensor:
        for b in self.blocks:
            h, x = b(h)
            h[h.sum(-1) > 0.5] = 0.1
            h = h + x
        return h


# -- refused ----------------------------------------------------------------------------------------------------------------
class SkipsInside(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if random.random() < 0.3 else super().forward(x)


class SkipsInParts(Words):
    """Each block draws by itself whether it runs: none can be a part."""

    def __init__(self) -> None:
        super().__init__(SkipsInside)


class Penalised(Words):
    """Takes a gradient of a gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x).detach().requires_grad_()
        (g,) = torch.autograd.grad(self.body(h).pow(2).mean(), h, create_graph=True)
        return super().forward(x) + g.pow(2).sum()


class SeedsItself(Words):
    """Draws from a seed that nobody knows: no two steps are equal."""

    def body(self, h: torch.Tensor) -> torch.Tensor:
        torch.seed()
        return super().body(F.dropout(h, 0.5))


class Noted(Words):
    """A hook inside of one block does more than compute."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.blocks[2].up.register_forward_hook(self.note)

    def note(self, module: nn.Module, args: Any, out: torch.Tensor) -> None:
        self.seen.append(1)
