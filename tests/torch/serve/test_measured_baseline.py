"""A fraction is one of what a plain step was measured to take, which the graph need not say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import rekindle
from rekindle.torch.serve import confirm as confirming
from rekindle.torch.serve.verify import Check


class Holds(nn.Module):
    """Makes tensors that nobody reads, and holds them in a variable."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = []
        for block in self.blocks:
            held.append(torch.cat([x, x], 1).detach())
            x = x + block(x)
        return x.square().mean()


def test_a_fraction_is_one_of_the_measured_plain_step(tmp_path: Path) -> None:
    model, x = Holds(), torch.rand(2048, 64)
    predicted = rekindle.plan(rekindle.trace(model, x, progress=False), 1.0, progress=False).baseline_activation_bytes
    rekindle.checkpoint(model, x, 0.9, progress=False)
    plan = model.forward.plan  # type: ignore[attr-defined, union-attr]
    plain = plan.checked.plain_peak_bytes
    assert plan.baseline_measured
    assert plan.baseline_activation_bytes == pytest.approx(plain, rel=0.02)
    assert plain > 1.1 * predicted
    assert len({*plan.schedule.runs}) == len(
        plan.schedule.runs
    )  # running each op once is within 0.9 of what eager takes
    assert "that eager took" in plan.sentence
    plan.save(tmp_path / "plan.json")
    again = rekindle.load(tmp_path / "plan.json")
    assert (again.baseline_peak_bytes, again.baseline_measured) == (plan.baseline_peak_bytes, True)


def test_a_plan_whose_step_takes_more_than_the_plain_one_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)), torch.rand(2048, 64)
    real = confirming.check_step

    def more(*args: object, **kwargs: object) -> Check:
        check = real(*args, **kwargs)  # type: ignore[arg-type]
        return replace(check, plain_peak_bytes=check.measured_peak_bytes // 2)

    monkeypatch.setattr(confirming, "check_step", more)
    with pytest.warns(rekindle.RekindleWarning, match="by its plan, and .* without one: this plan saves no memory"):
        rekindle.checkpoint(model, x, max_overhead=0.0, progress=False)
