"""Parameters of a planned module can be swapped for others: nothing of ours refers to them between steps, not even weakly."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import rekindle

X = torch.linspace(-1, 1, 64 * 16).reshape(64, 16)


@pytest.fixture
def swapping() -> Iterator[None]:
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    model(x).square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.usefixtures("swapping")
def test_a_planned_module_can_be_swapped_for_another_dtype(autocast: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.GELU())
    model = rekindle.checkpoint(
        copy.deepcopy(plain), X, budget=0.8, effort="quick", cost="unit", progress=False, cache=False
    )
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        step(model, X)
    model.zero_grad()
    if autocast:  # a step in an autocast block refers to its leaves as long as the block may go on
        rekindle.restore(model)
    assert not any(weakref.getweakrefs(t) for t in [*model.parameters(), *model.buffers()])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        step(plain, X)
    plain.double(), model.double()
    for found, expected in zip(step(model, X.double()), step(plain, X.double()), strict=True):
        assert found.dtype is torch.float64
        assert torch.equal(found, expected)
