"""Views are made where they are read, and no more of them than that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import rekindle
from marks import every, sweep


class Unrolled(nn.Module):
    """Takes its input apart step by step, and each step in two."""

    def __init__(self, sizes: bool) -> None:
        super().__init__()
        self.cell, self.sizes = nn.Linear(8, 4), sizes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.shape[1], 4)
        for step in x.unbind(0):
            a, b = step.split([3, 1], 1) if self.sizes else step.chunk(2, 1)
            h = torch.tanh(self.cell(torch.cat([a, b, h], 1)))
        return h


@sweep
@pytest.mark.parametrize("sizes", every(2, [False, True]))
def test_a_run_in_an_unrolled_network_takes_one_view(sizes: bool) -> None:
    """Each run took all views of the input: quadratic in their number."""

    class Count(TorchDispatchMode):
        ops = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.ops += 1
            return func(*args, **(kwargs or {}))

    taken = []
    for n in (8, 16):
        torch.manual_seed(0)
        model, x = Unrolled(sizes), torch.randn(n, 2, 4)
        trace = rekindle.trace(model, x)
        plan = rekindle.plan(trace, minimize="memory", solver="chen-sqrt")
        assert rekindle.verify(model, x, plan).ok
        rekindle.apply(model, plan)
        with Count() as count:
            model(x).sum().backward()
        taken.append(count.ops / len(plan.schedule.runs))
    assert taken[1] < 1.1 * taken[0]
