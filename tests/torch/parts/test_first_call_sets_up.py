"""Models whose first call sets up what later calls find, planned whole and in parts."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rekindle
from marks import few
from rekindle import UsageError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.own = nn.Linear(16, 16).requires_grad_(False), nn.Linear(16, 16)
        self.scale, self.shift = nn.Parameter(torch.ones(16)), nn.Parameter(torch.zeros(16))
        self.how = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        how, self.how = self.how, ""
        if how:
            HOW[how](self, x)
        h = torch.relu(F.linear(x * self.scale + self.shift, self.base.weight.float()))
        return h * getattr(self, "cache", 1.0) + self.own(x).tanh().sin()


def cast(block: Block, *_: Any) -> None:
    block.base.weight = nn.Parameter(block.base.weight.data.bfloat16(), requires_grad=False)


def fill(block: Block, x: torch.Tensor) -> None:
    with torch.no_grad():
        block.shift.copy_(-x.mean(0))


def wrap(block: Block, _: torch.Tensor) -> None:
    block.own = nn.Sequential(block.own, nn.Tanh())


HOW: dict[str, Callable[..., None]] = {
    "cast": cast,
    "new parameter": lambda block, x: setattr(block, "scale", nn.Parameter(1 / (1 + x.detach().std(0)))),
    "new buffer": lambda block, x: block.register_buffer("cache", torch.arange(16.0).cos(), persistent=False),
    "filled": fill,
    "new submodule": wrap,
}


class Net(nn.Module):
    """reads : a tensor is read, so that parts alone can be planned. how : what the first call does; "hook": a hook does it."""

    def __init__(self, reads: bool, how: str):
        super().__init__()
        self.reads, self.how, self.blocks = reads, how, nn.ModuleList(Block() for _ in range(2))
        for b in self.blocks:
            b.how = how if how in HOW else ""  # type: ignore[assignment]
        if how == "hook":
            self._handle = self.register_forward_pre_hook(Net.first)

    def first(self, _: Any) -> None:
        self.__dict__.pop("_handle").remove()
        for b in self.blocks:
            cast(b)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "in the model":
            self.how = ""
            for b in self.blocks:
                cast(b)  # type: ignore[arg-type]
        for b in self.blocks:
            x = b(x)
        if self.reads and x.sum().item() > 1e9:
            raise OverflowError
        return x


def steps(model: nn.Module) -> list[torch.Tensor]:
    found = []
    for k in range(2):
        model.zero_grad()
        model(torch.arange(512.0).add(k).sin().view(32, 16)).square().mean().backward()
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [*found, *model.state_dict().values()]


CASES = [*itertools.product([False, True], [*HOW, "in the model", "hook"])]
KEPT = [(False, "hook"), (True, "hook"), (True, "filled")]


@pytest.mark.parametrize(("reads", "how"), few(CASES, KEPT))
def test_the_plan_is_for_the_calls_after_the_first(reads: bool, how: str) -> None:
    torch.manual_seed(0)
    plain, x = Net(reads, how), torch.rand(32, 16)
    torch.manual_seed(0)
    planned = Net(reads, how)
    rekindle.checkpoint(planned, x, minimize="memory", solver="storages", progress=False)
    assert planned.forward.plan.kind == ("parts" if reads else "step")
    twin = copy.deepcopy(planned) if how != "hook" else None  # the hook's handle belongs to one module
    if reads:
        with pytest.raises(UsageError, match="first call sets; call it once before"):
            rekindle.verify(planned, x)
    expected = steps(plain)
    for model in (planned, twin):
        if model is not None:
            assert all(map(torch.equal, steps(model), expected))
            assert rekindle.status(model).calls
            assert all(p.calls for p in rekindle.status(model).plans)
    assert rekindle.verify(planned, x).ok


def test_another_call_during_the_first_one_puts_the_parts_on() -> None:
    x, planned = torch.rand(32, 16), Net(True, "filled")
    rekindle.checkpoint(planned, x, minimize="memory", solver="storages", progress=False)

    def again(*_: Any) -> None:  # as another thread may call
        handle.remove()
        planned(x)

    handle = planned.blocks[0].register_forward_hook(again)
    planned(x)
    planned(x).sum().backward()
    assert all(p.calls for p in rekindle.status(planned).plans)


class Pops(Block):
    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        return super().forward(batch.pop("x"))


def test_a_first_call_that_also_takes_entries_out_of_its_argument() -> None:
    x, planned = torch.rand(32, 16), Pops()
    planned.how = "new parameter"
    rekindle.checkpoint(planned, ({"x": x},), minimize="memory", solver="storages", progress=False)
    for _ in range(2):
        planned({"x": x}).sum().backward()
    assert rekindle.status(planned).calls == 1
