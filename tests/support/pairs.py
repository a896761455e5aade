"""A module and its planned copy, to be taken through the same steps."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import nn

import rekindle
from rekindle import Plan, Trace


class Net(nn.Module):
    """Four blocks with BatchNorm, dropout and a residual, and a head."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.GELU(), nn.Dropout(0.1)) for _ in range(4)
        )
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def tight(trace: Trace) -> Plan:
    """A plan that recomputes a good part."""
    return rekindle.plan(trace, minimize="memory", solver="feng")


@functools.cache
def planned_pair(copying: bool = False) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """(plain, planned, input). copying : the plan copies values to the host."""
    torch.manual_seed(0)
    plain, x = Net(), torch.rand(32, 16)
    planned = copy.deepcopy(plain)
    trace = rekindle.trace(planned, x)
    plan = rekindle.plan(trace, minimize="memory", offload=True) if copying else tight(trace)
    assert plan.overhead > 0
    assert plan.schedule.moves == copying
    return plain, rekindle.apply(planned, plan), x


def equal_gradients(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return all(
        (p.grad is None) == (q.grad is None) and (p.grad is None or torch.equal(p.grad, q.grad)) for p, q in pairs
    )


def both(pair: tuple[nn.Module, nn.Module, torch.Tensor], step: Any) -> list[Any]:
    """The step's result for the plain and the planned module, from the same RNG state."""
    out = []
    for m in pair[:2]:
        torch.manual_seed(1)
        out.append(step(m, pair[2]))
    return out
