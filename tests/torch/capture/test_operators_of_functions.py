"""torch.cond and other operators that take functions: the parts around them are planned, and they work as before."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import rekindle
from rekindle import TraceError


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.one, self.other, self.after = (
            nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8)) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.before(x)
        h = torch.cond(h.mean() > 0, lambda z: self.one(z), lambda z: self.other(z).tanh(), (h,))
        return self.after(h)


def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    result = model(x)
    result.square().mean().backward()
    return [result.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def test_the_parts_around_torch_cond_are_planned() -> None:
    torch.manual_seed(0)
    plain, x = Branching(), torch.randn(64, 8)
    planned = copy.deepcopy(plain)
    with pytest.raises(TraceError, match="the model calls cond"):
        rekindle.trace(planned, x)
    expected = [step(plain, x), step(plain, -x)]
    assert all(map(torch.equal, step(planned, x), expected[0]))
    rekindle.checkpoint(planned, x, minimize="memory", solver="storages", progress=False)
    assert [p.path for p in planned.forward.plan.parts] == ["before", "after"]
    assert "calls cond, which takes functions" in planned.forward.plan.covered
    for k, given in enumerate((x, -x)):
        assert all(map(torch.equal, step(planned, given), expected[k]))
