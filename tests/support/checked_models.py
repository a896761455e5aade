"""Models for the measured check, and a quick plan of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import rekindle
from rekindle import Plan

FAST = "chen-sqrt"


def planned(model: nn.Module, sample: Any) -> Plan:
    return rekindle.plan(rekindle.trace(model, sample), minimize="memory", solver=FAST)


class Body(nn.Module):
    def __init__(
        self, first: Callable[[torch.Tensor], Any] = lambda x: None, out: Callable[[torch.Tensor], Any] = lambda h: h
    ):
        super().__init__()
        self.layers = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(16, 16), nn.Tanh())))
        self.first, self.out = first, out

    def forward(self, x: torch.Tensor) -> Any:
        self.first(x)
        return self.out(self.layers(x * 1))
