"""Plans beside a measured plain step: a fraction is one of what it takes, and it runs where its plan takes more."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from rekindle.torch.measure.measured_step import Calls, Outcome
from rekindle.torch.serve import confirm as confirming
from rekindle.torch.serve.verify import Check, Steps


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


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))


def test_calls_run_plain_whose_plan_takes_more_than_the_plain_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, x = net(), torch.rand(2048, 64)
    real = confirming.check_step

    def more(*args: Any, **kwargs: Any) -> Check:
        check = real(*args, **kwargs)
        return replace(check, measured_peak_bytes=check.measured_peak_bytes + 2**20)

    monkeypatch.setattr(confirming, "check_step", more)
    with pytest.warns(rekindle.RekindleWarning, match="by its plan, and .* without one: such calls run plain"):
        rekindle.checkpoint(model, x, max_overhead=0.0, progress=False)
    plan = model.forward.plan  # type: ignore[attr-defined, union-attr]
    assert plan.checked.measured_peak_bytes > plan.checked.plain_peak_bytes
    plan.save(tmp_path / "plan.json")
    for planned in (model, rekindle.apply(net(), rekindle.load(tmp_path / "plan.json")), copy.deepcopy(model)):
        planned(x).sum().backward()
        status = rekindle.status(planned)
        assert (status.calls, [(r.calls, "no more memory without" in r.why) for r in status.plain]) == (0, [(1, True)])
        check = rekindle.verify(planned, x)
        assert check.ok
        assert check.measured_peak_bytes == check.plain_peak_bytes
    model(x[:100]).sum().backward()
    assert rekindle.status(model).calls == 1  # of another size, which has a plan of its own


class Averages(nn.Module):
    """Keeps an average of its weights."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(80, 80), nn.GELU()))) for _ in range(2))
        self.net, self.average = layers
        self.average.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), [p.detach() for p in self.net.parameters()], 0.01)
            target = self.average(x)
        return nn.functional.mse_loss(self.net(x), target)


def test_old_values_for_second_derivatives_take_little_of_a_step() -> None:
    """An average of the weights, which forward reads and writes: a copy of it took 5 % of the step, beside the prediction."""
    model, x = Averages(), torch.rand(512, 80)
    rekindle.checkpoint(model, x, 0.8, progress=False)
    check = rekindle.verify(model, x)
    assert check.measured_peak_bytes == pytest.approx(check.predicted_peak_bytes, rel=0.01)


def test_a_checked_fraction_runs_one_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    real = Steps.run

    def noted(self: Steps, which: str, way: Calls = Calls.ONCE) -> Outcome:
        ran.append(which)
        return real(self, which, way)

    monkeypatch.setattr(Steps, "run", noted)
    rekindle.checkpoint(Holds(), torch.rand(512, 64), 0.7, progress=False)
    assert ran == ["plain", "planned"]
