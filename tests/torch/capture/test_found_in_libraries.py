"""Faults that libraries' models, or random sequences of actions, brought to light, each with the smallest module for it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rekindle

HOW: dict[str, Any] = {"minimize": "memory", "solver": "storages", "time_limit": 0.2}


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).tanh())


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {k: p.grad for k, p in model.named_parameters()}


def assert_equal_gradients(planned: nn.Module, eager: nn.Module) -> None:
    ours, theirs = gradients(planned), gradients(eager)
    wrong = [k for k, g in theirs.items() if not (g is ours[k] if g is None else torch.equal(g, ours[k]))]  # type: ignore[arg-type]
    assert not wrong, wrong


def pair(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    return copy.deepcopy(model), model


@pytest.mark.parametrize("where", ["planned under autocast", "autocast after planning"])
def test_a_tied_weight_under_autocast(where: str) -> None:
    """Autocast casts the weight once for both uses, so that the two gradients are added in the lower precision."""
    torch.manual_seed(0)
    eager, planned = pair(Tied())
    x = torch.randn(16, 8)
    with torch.autocast("cpu", torch.bfloat16, enabled=where == "planned under autocast"):
        rekindle.checkpoint(planned, x, **HOW)
    for m in (eager, planned):
        with torch.autocast("cpu", torch.bfloat16):
            out = m(x)
        out.float().square().sum().backward()
    assert_equal_gradients(planned, eager)


def test_a_tied_weight_in_two_calls_before_one_backward() -> None:
    """Eager adds the four gradients one by one, in the order in which they come: ((b2 + a2) + b1) + a1."""
    torch.manual_seed(0)
    eager, planned = pair(Tied())
    x = torch.randn(64, 8)
    rekindle.checkpoint(planned, x, **HOW)
    for m in (eager, planned):
        (m(x).square().sum() + m(2 * x).square().sum()).backward()
    assert_equal_gradients(planned, eager)
