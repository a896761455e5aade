"""Looking for rewrites takes no plan away: where it fails, the step is planned as it was captured, and a warning is logged."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import every
from rekindle.planning import variants
from rekindle.torch.rewrite import candidates


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(1024, 4))


@pytest.mark.parametrize("name", every(3, ["smaller_saves", "in_slices", "after"]))
def test_a_plan_is_made_all_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: Any) -> Any:
        raise RuntimeError("a fault in a rewrite")

    net, x = model(), torch.rand(8, 3, 32, 32)
    trace = rekindle.trace(net, x, progress=False)
    usual = rekindle.plan(trace, max_overhead=0.1, cost="flops", cache=False, progress=False)
    assert usual.rewriting is not None  # this step is rewritten where nothing fails
    monkeypatch.setattr(candidates.Rewrites, name, fails)
    with caplog.at_level(logging.WARNING, logger="rekindle"):
        plan = rekindle.plan(trace, max_overhead=0.1, cost="flops", cache=False, progress=False)
    assert plan.rewriting is None or name != "after"  # without the one kind of rewrite, the other may serve
    assert "a fault in a rewrite" in caplog.text
    assert rekindle.verify(net, x, plan).ok


def test_a_rewrite_that_does_not_fit_is_left_out_quietly(caplog: pytest.LogCaptureFixture) -> None:
    def misfit() -> None:
        raise rekindle.PlanMismatch("an op lays its result out in another way")

    with caplog.at_level(logging.WARNING, logger="rekindle"):
        assert variants._found(misfit, 7) == 7
    assert not caplog.records
