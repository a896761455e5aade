"""A planned model keeps nothing of the training loop alive, and says of a module that is another one how it differs."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import sweep

QUICK: dict[str, Any] = {"minimize": "memory", "effort": "quick", "progress": False}


def net(*last: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), *last)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"parts": "0"},
        pytest.param({"offload": "optimizer"}, marks=sweep),
        pytest.param({"compile": True}, marks=sweep),
    ],
    ids=str,
)
def test_a_plan_keeps_no_optimizer_alive(how: dict[str, Any]) -> None:
    model, x = nn.Sequential(net(), net()), torch.randn(8, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rekindle.checkpoint(model, x, optimizer=optimizer, **how, **QUICK)
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    plan = model.forward.plan
    assert plan.trace_options.optimizer is optimizer
    momentum = next(iter(optimizer.state.values()))["momentum_buffer"]
    gone = [weakref.ref(thing) for thing in (optimizer, x, loss, momentum)]
    del optimizer, x, loss, momentum
    gc.collect()
    assert [ref() for ref in gone] == [None] * len(gone)
    # Plans for other calls count its state as it was, and so does a file.
    model(torch.randn(6, 16)).sum().backward()
    assert plan.trace_options.optimizer.kind is torch.optim.SGD
    if not how:
        assert len({b.trace.state_bytes for b in model.forward.bounds}) == 1
        assert plan.to_json()["options"]["optimizer"] == "sgd"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (net(nn.Tanh()), "has no submodule '3'; this Sequential has Tanh there"),
        (nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)), "'1' is GELU; this Sequential has ReLU there"),
    ],
    ids=["more", "another"],
)
def test_another_module_is_told_apart_in_words(other: nn.Module, words: str) -> None:
    plan = rekindle.plan(rekindle.trace(net(), torch.randn(8, 16)), minimize="memory", effort="quick", progress=False)
    with pytest.raises(rekindle.PlanMismatch, match=words):
        rekindle.apply(other, plan)
