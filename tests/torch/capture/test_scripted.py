"""Scripted and traced submodules run as they are, with parts planned around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import every
from rekindle import TraceError
from rekindle.torch.parts.applied import forward_of

PLAN: dict[str, Any] = {"budget": 0.7, "effort": "quick", "cost": "unit", "progress": False, "cache": False}


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))


def scripted() -> nn.Module:
    return torch.jit.script(nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.SiLU()))


def traced() -> nn.Module:
    return torch.jit.trace(nn.Sequential(nn.Linear(32, 32), nn.SiLU()), torch.zeros(4, 32))


@pytest.mark.parametrize("make", every(2, [scripted, traced]))
def test_parts_are_planned_around_a_module_that_torchscript_runs(make: Callable[[], nn.Module]) -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(nn.Sequential(block(), make(), block()))
    x = torch.randn(256, 32)
    rekindle.checkpoint(models[0], x, **PLAN)
    assert [forward_of(m) is not None for m in models[0].children()] == [True, False, True]
    for m in models:
        m(x).square().mean().backward()
    for (k, p), q in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert p.grad is q.grad is None or torch.equal(p.grad, q.grad), k


@pytest.mark.parametrize("make", [scripted, traced])
def test_a_plan_of_the_whole_is_refused_by_the_true_cause(make: Callable[[], nn.Module]) -> None:
    model = nn.Sequential(block(), make(), block())
    with pytest.raises(TraceError, match=r"TorchScript .* runs the submodule '1' at .*plans the parts around it"):
        rekindle.trace(model, torch.randn(256, 32), progress=False)
