"""Tensors of no module that forward writes to: trackers in globals, dicts, classes, closures and objects."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rekindle

QUICK: dict[str, Any] = {"effort": "quick", "progress": False, "solver": "storages"}
GLOBAL = torch.zeros(4)
TABLE = {"v": torch.zeros(4)}
ROWS = [*torch.zeros(2, 4)]
SPACE = types.SimpleNamespace(v=torch.zeros(4))
FIRST: dict[str, torch.Tensor] = {}


class Holder:
    v = torch.zeros(4)


def made() -> tuple[torch.Tensor, Callable[[torch.Tensor], None]]:
    v = torch.zeros(4)

    def add(x: torch.Tensor) -> None:
        v[0] += x

    return v, add


CELL, ADD = made()


def of(how: str) -> torch.Tensor:
    tensors = {
        "global": GLOBAL,
        "table": TABLE["v"],
        "row": ROWS[0],
        "space": SPACE.v,
        "class": Holder.v,
        "closure": CELL,
    }
    return tensors.get(how, GLOBAL)


class Net(nn.Module):
    """Counts in a tensor, which its result may depend on."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.up, self.down, self.own = how, nn.Linear(8, 32), nn.Linear(32, 8), {"v": torch.zeros(4)}

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.relu(self.up(x))
        side, how = h.detach().mean(), self.how
        if how == "global":
            GLOBAL[1] += side
        elif how == "table":
            TABLE["v"] += side
        elif how == "row":
            ROWS[0].add_(side)
            ROWS[1].fill_(2.0)
        elif how == "space":
            torch._foreach_add_([SPACE.v], 1.0)
        elif how == "class":
            torch.add(Holder.v, side, out=Holder.v)
        elif how == "closure":
            ADD(side)
        elif how == "own":
            self.own["v"] += 1
            h = h * torch.where(self.own["v"][0] > 2, 0.5, 1.0)
        elif how == "first":
            if "v" not in FIRST:
                FIRST["v"] = torch.zeros(())
            FIRST["v"] += side
        elif how == "returned":
            GLOBAL.add_(1.0)
            return self.down(h), GLOBAL
        return self.down(h)


def steps(model: nn.Module, x: torch.Tensor, n: int = 4) -> list[torch.Tensor]:
    for _ in range(n):
        model(x).square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("how", ["global", "table", "row", "space", "class", "closure"])
def test_a_tracker_counts_as_in_eager(how: str) -> None:
    torch.manual_seed(0)
    model, x = Net(how), torch.randn(16, 8)
    twin = copy.deepcopy(model)
    of(how).zero_()
    rekindle.checkpoint(model, x, minimize="memory", **QUICK)
    assert not of(how).any()
    ours = steps(model, x)
    counted = of(how).clone()
    of(how).zero_()
    assert all(map(torch.equal, ours, steps(twin, x)))
    assert counted.any()
    assert torch.equal(counted, of(how))
    assert not rekindle.status(model).plain
    if how == "row":
        assert ROWS[1].eq(2.0).all()


def test_a_result_that_depends_on_the_count() -> None:
    torch.manual_seed(0)
    model, x = Net("own"), torch.randn(16, 8)
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, x, minimize="memory", **QUICK)
    assert not model.own["v"].any()
    assert all(map(torch.equal, steps(model, x), steps(twin, x)))
    assert model.own["v"].eq(4).all()
    copied = copy.deepcopy(model)  # it writes to its own
    copied(x).sum().backward()
    assert copied.own["v"].eq(5).all()
    assert model.own["v"].eq(4).all()


def test_a_tracker_that_the_first_call_makes() -> None:
    torch.manual_seed(0)
    model, x = Net("first"), torch.randn(16, 8)
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, x, minimize="memory", **QUICK)
    assert not FIRST
    ours = steps(model, x)
    counted = FIRST.pop("v")
    assert all(map(torch.equal, ours, steps(twin, x)))
    assert torch.equal(counted, FIRST.pop("v"))


def test_second_derivatives_leave_the_tracker_alone() -> None:
    torch.manual_seed(0)
    model, x = Net("global"), torch.randn(16, 8, requires_grad=True)
    twin = copy.deepcopy(model)
    GLOBAL.zero_()
    rekindle.checkpoint(model, x, minimize="memory", **QUICK)
    found = []
    for m in (model, twin):
        with (
            pytest.warns(rekindle.RekindleWarning, match="create_graph") if m is model else pytest.MonkeyPatch.context()
        ):
            (g,) = torch.autograd.grad(m(x).square().sum(), x, create_graph=True)
        g.square().sum().backward()
        found.append([GLOBAL.clone(), *[p.grad for p in m.parameters() if p.grad is not None]])
        x.grad = None
        GLOBAL.zero_()
    assert all(map(torch.equal, *found))


def test_a_tracker_that_forward_returns_is_refused() -> None:
    with pytest.raises(rekindle.TraceError, match="returns a tensor to which it writes, and which is no buffer"):
        rekindle.trace(Net("returned"), torch.randn(16, 8))
