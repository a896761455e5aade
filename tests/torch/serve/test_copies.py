"""Copies of a planned module: each is planned, computes with its own weights and can be restored."""

from __future__ import annotations

import copy
import types
from typing import Any

import pytest
import torch
from torch import nn

import rekindle

GOAL: dict[str, Any] = {"minimize": "memory", "solver": "storages"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh()).sin()


class Scaled(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


def without_sine(self: Net, x: torch.Tensor) -> torch.Tensor:
    return self.second(self.first(x).tanh())


@pytest.mark.parametrize("gradients", [False, True])
def test_a_copy_runs_a_forward_of_its_own_with_its_own_weights(gradients: bool) -> None:
    plain, x = Net(), torch.randn(4, 8)
    plain.forward = types.MethodType(without_sine, plain)  # type: ignore[method-assign]
    planned = rekindle.checkpoint(copy.deepcopy(plain), x, **GOAL)
    twin = copy.deepcopy(planned)
    with torch.no_grad():
        for p in planned.parameters():
            p.zero_()
    with torch.set_grad_enabled(gradients):
        for size in (4, 5):
            x = torch.randn(size, 8)
            assert torch.equal(twin(x), plain(x))
    assert rekindle.restore(twin).forward.__self__ is twin


def test_a_copy_of_a_copy_has_the_plans() -> None:
    x = torch.randn(4, 8)
    planned = rekindle.checkpoint(Net(), x, **GOAL, on_new_shape="error")
    first = copy.deepcopy(planned)
    second = copy.deepcopy(first)
    for m in (planned, first, second):
        m(x).sum().backward()
        assert m.forward.last is not None


@pytest.mark.parametrize("gradients", [False, True])
def test_a_shallow_copy_has_attributes_of_its_own(gradients: bool) -> None:
    x = torch.randn(4, 8)
    planned = rekindle.checkpoint(Scaled(), x, **GOAL)
    shallow = copy.copy(planned)
    shallow.scale = 2.0
    with torch.set_grad_enabled(gradients):
        assert torch.equal(shallow(x), 2 * planned(x))


def test_a_wrapped_copy_can_be_restored() -> None:
    x = torch.randn(4, 8)
    twin = copy.deepcopy(rekindle.checkpoint(Net(), x, **GOAL))
    inner = twin.forward
    twin.forward = lambda *args: inner(*args)  # type: ignore[method-assign]
    rekindle.restore(twin)
    twin(x).sum().backward()
    assert inner.last is None
