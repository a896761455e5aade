"""A workspace that was guessed refuses no budget and gives no warning: before that, it is measured, or left out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from rekindle import InfeasibleBudget, RekindleWarning
from rekindle.torch.costs import clock_cpu, node_costs
from rekindle.torch.costs.fits import Fits

pytestmark = pytest.mark.usefixtures("cache")
HUGE = 2**33


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(4) for m in (nn.Conv2d(4, 4, 3, padding=1), nn.Tanh())))


def unmeasured(monkeypatch: pytest.MonkeyPatch, may_run: Callable[[], bool]) -> None:
    """Let no convolution be measured as long as none may run, and let all guesses be huge."""
    real = clock_cpu.CpuRunner.once

    def once(self: Any, call: Any, args: Any, kwargs: Any) -> float:
        if "conv" in str(call.target) and not may_run():
            raise RuntimeError("out of time")
        return real(self, call, args, kwargs)

    monkeypatch.setattr(clock_cpu.CpuRunner, "once", once)
    monkeypatch.setattr(Fits, "workspace", lambda self, key, moved: HUGE if "conv" in key else 0)


@pytest.mark.parametrize("may_run", [True, False], ids=["measured", "left out"])
def test_a_guess_refuses_no_budget(monkeypatch: pytest.MonkeyPatch, may_run: bool) -> None:
    ready: list[bool] = []
    monkeypatch.setattr(node_costs, "_LATER", {})  # what other tests measured
    unmeasured(monkeypatch, lambda: bool(ready) and may_run)
    trace = rekindle.trace(model(), torch.rand(2, 4, 32, 32))
    assert max(op.workspace for op in trace.graph.ops) == HUGE
    ready.append(True)
    for solver in ("storages", "auto"):
        plan = rekindle.plan(trace, "1MiB", solver=solver)
        assert plan.peak_bytes <= 2**20
        convolutions = [op.workspace for op in plan.graph.ops if "conv" in op.name]
        assert (max(convolutions) > 0) == may_run
    with pytest.raises(InfeasibleBudget):
        rekindle.plan(trace, "50KiB", solver="storages")


def test_a_guess_says_of_no_new_shape_that_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = model(), torch.rand(2, 4, 32, 32)
    rekindle.checkpoint(net, x, "1MiB", solver="storages")
    unmeasured(monkeypatch, lambda: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RekindleWarning)
        net(torch.rand(2, 4, 28, 28)).sum().backward()
    assert net.forward.last.plan.peak_bytes <= 2**20  # type: ignore[attr-defined, union-attr]


def test_a_guess_says_of_no_plan_from_a_file_that_it_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    net, x = model(), torch.rand(2, 4, 32, 32)
    plan = rekindle.plan(rekindle.trace(net, x), "1MiB", solver="storages")
    plan.save(tmp_path / "plan.json")
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "another"))
    monkeypatch.setattr("rekindle.torch.costs.node_costs._SESSION", {})
    unmeasured(monkeypatch, lambda: True)
    rekindle.apply(net, replace(rekindle.load(tmp_path / "plan.json")))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RekindleWarning)
        net(x).sum().backward()
