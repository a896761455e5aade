"""Parts as their step calls them: with the hooks and the state that code around them sets for the call alone."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import every
from models_in_parts import differing, train
from rekindle import TraceError, UsageError

QUICK: dict[str, Any] = {"effort": "quick", "progress": False, "max_overhead": 0.5}


def block(size: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.LayerNorm(4 * size), nn.Linear(4 * size, size))


class Scale:
    def __init__(self, by: float):
        self.by = by

    def __call__(self, m: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        return out * self.by


def wrapped(hook: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(hook)
    def same(*args: Any) -> torch.Tensor:
        return hook(*args)

    return same


def hook_of(kind: str, by: float) -> Callable[..., Any]:
    """A hook that is made anew."""
    own = torch.ones(()) * by
    hooks: dict[str, Callable[..., Any]] = {
        "closure": lambda m, args, out: out * by,
        "default": lambda m, args, out, by=by: out * by,
        "nested": (lambda inner: lambda m, args, out: inner(out))(lambda out: out * by),
        "partial": functools.partial(lambda by, m, args, out: out * by, by),
        "method": Scale(by).__call__,
        "object": Scale(by),
        "wrapped": wrapped(lambda m, args, out: out * by),
        "tensor": lambda m, args, out: out * own,
    }
    return hooks[kind]


class Hooked(nn.Module):
    """Puts a hook on its blocks for each call, and decides by a value, so that it is planned in parts."""

    def __init__(self, kind: str):
        super().__init__()
        self.blocks, self.kind, self.by = nn.ModuleList(block() for _ in range(2)), kind, 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        handles = [b[1].register_forward_hook(hook_of(self.kind, self.by)) for b in self.blocks]
        for b in self.blocks:
            x = b(x if float(x.detach().sum()) < 1e9 else 2 * x)
        for h in handles:
            h.remove()
        return x.square().mean()


KINDS = ["closure", "tensor", "default", "nested", "partial", "method", "object", "wrapped"]


@pytest.mark.parametrize("kind", every(2, KINDS))
def test_hooks_that_each_call_makes_anew_need_no_plan_each(kind: str) -> None:
    torch.manual_seed(0)
    model, x = Hooked(kind), torch.randn(8, 16)
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, x, **QUICK)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert differing(train(model, (x,), steps=5), train(twin, (x,), steps=5)) == 0
        plans = [len(list(b.forward.bounds)) for b in model.blocks]
        used = [b.forward.last is not None for b in model.blocks]
        model.by = twin.by = 3.0  # the content of the hooks counts
        assert differing(train(model, (x,), steps=1), train(twin, (x,), steps=1)) == 0
    if kind == "tensor":  # its tensor is a constant of the graph: no later call finds it
        assert max(plans) <= 3
        assert "in objects that each call makes anew" in str(told[0].message)
    else:
        assert (plans, used) == ([1, 1], [True, True])
        assert not told


class Beside(nn.Module):
    """Holds nearly all activations outside of its one part."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.part = nn.Parameter(torch.randn(32, 32)), block(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = torch.tanh((x if float(x.detach().sum()) < 1e9 else 2 * x) @ self.weight)
        return self.part(x[:2, :4]).sum()


@pytest.mark.parametrize("named", [None, "part"])
def test_a_part_that_holds_next_to_nothing_is_refused_by_that_reason(named: str | None) -> None:
    model = Beside()
    error = TraceError if named is None else UsageError
    with pytest.raises(error, match=r"Sequential \(it holds next to nothing of what the step holds\)"):
        rekindle.checkpoint(model, torch.randn(256, 32), parts=named, **QUICK)
    assert "forward" not in vars(model.part)


class Collecting(Hooked):
    """Its hooks do more than compute, and are gone when backward runs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen: list[Any] = []
        handles = [b[1].register_forward_hook(lambda m, a, o: (seen.append(1), 2 * o)[1]) for b in self.blocks]
        for b in self.blocks:
            x = b(x if float(x.detach().sum()) < 1e9 else 2 * x)
        for h in handles:
            h.remove()
        return x.sum()


def test_a_part_whose_hooks_are_gone_in_backward_does_not_run_again() -> None:
    with pytest.raises(TraceError, match="would not run the forward hook"):
        rekindle.checkpoint(Collecting(""), torch.randn(8, 16), **QUICK)
