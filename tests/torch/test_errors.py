"""Bad input: the error says what was asked, why it cannot be and what to do, and nothing is lost."""

from __future__ import annotations

import json
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import every
from rekindle import FormatError, InfeasibleBudget, ParityError, RekindleError, TraceError, UsageError
from test_dispatch import untouched
from test_execute import Net, tight


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = self.layer(x)
        if self.last.sum() > 0:  # the line to be named
            return self.last
        return -self.last


def test_data_dependent_control_flow_names_the_line() -> None:
    model = Branching()
    with untouched(model), pytest.raises(TraceError) as e:
        rekindle.checkpoint(model, torch.ones(2, 4), budget=0.5)
    assert f"{__file__}:{line_of('if self.last.sum() > 0')}" in str(e.value)
    assert "torch.where" in str(e.value)
    assert model.calls == 0


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


def test_a_call_that_does_not_work_names_the_line() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).reshape(7, 7)  # no such shape

    with pytest.raises(TraceError, match=f"{Path(__file__).name}:{line_of('# no such shape')}"):
        rekindle.trace(Wrong(), torch.rand(2, 4))


def test_nothing_to_train_is_an_error() -> None:
    model = Net().requires_grad_(False)
    with pytest.raises(TraceError, match="requires grad"):
        rekindle.trace(model, torch.rand(4, 16))


def test_an_unknown_solver_lists_the_known_ones() -> None:
    trace = rekindle.trace(Net(), torch.rand(4, 16))
    with pytest.raises(UsageError, match="'best' is unknown.*auto.*chen-sqrt.*every.*feng.*none"):
        rekindle.plan(trace, 0.5, solver="best")


def test_a_budget_of_one_byte_names_bound_and_op() -> None:
    model = Net()
    with untouched(model), pytest.raises(InfeasibleBudget) as e:
        rekindle.checkpoint(model, torch.rand(32, 16, generator=torch.Generator()), budget=1, solver="storages")
    error = e.value
    assert error.budget == 1
    assert 1 < error.bound_bytes <= error.smallest_peak
    assert error.op in str(error)
    assert str(error.smallest_peak) in str(error)
    trace = rekindle.trace(model, torch.rand(32, 16))
    found = rekindle.plan(trace, budget=error.smallest_peak, solver="storages")
    assert found.peak_bytes <= error.smallest_peak


@pytest.mark.parametrize(
    ("goal", "words"),
    every(
        3,
        [
            ({}, "got none"),
            ({"budget": 0.5, "max_overhead": 0.1}, "budget and max_overhead"),
            ({"budget": "8 potatoes"}, "8 potatoes.*8GiB"),
            ({"budget": 0.0}, "fraction"),
            ({"budget": 2.0}, "fraction"),
            ({"budget": True}, "no size"),
            ({"budget": -1}, "no size"),
            ({"max_overhead": -0.1}, "at least 0"),
            ({"minimize": "time"}, "memory"),
            ({"budget": 0.5, "cost": "euros"}, "seconds, flops, unit"),
            ({"budget": 0.5, "time_limit": 0}, "above 0"),
            ({"budget": 0.5, "target": "abacus"}, "h200"),
        ],
    ),
)
def test_senseless_goals_are_refused(goal: dict[str, Any], words: str) -> None:
    trace = rekindle.trace(Net(), torch.rand(4, 16))
    with pytest.raises(UsageError, match=words):
        rekindle.plan(trace, **goal)


@pytest.mark.parametrize("sample", [7, "x", None])
def test_a_senseless_sample_is_refused(sample: Any) -> None:
    with pytest.raises(UsageError, match="sample"):
        rekindle.trace(Net(), sample)


def test_plan_takes_a_trace_or_a_graph() -> None:
    with pytest.raises(UsageError, match="Trace"):
        rekindle.plan(Net(), 0.5)  # type: ignore[arg-type]


def test_verify_without_a_plan_is_refused() -> None:
    with pytest.raises(UsageError, match="no plan"):
        rekindle.verify(Net(), torch.rand(4, 16))


def test_a_truncated_plan_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    tight(rekindle.trace(Net(), torch.rand(4, 16))).save(path)
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    with pytest.raises(FormatError, match="damaged"):
        rekindle.load(path)


@pytest.mark.parametrize("key", ["peak_bytes", "overhead", "baseline_peak_bytes", "flops_overhead"])
def test_a_plan_file_with_a_changed_figure_is_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "plan.json"
    tight(rekindle.trace(Net(), torch.rand(4, 16))).save(path)
    doc = json.loads(path.read_text())
    doc[key] += 1
    path.write_text(json.dumps(doc))
    with pytest.raises(FormatError, match="inconsistent"):
        rekindle.load(path)


def test_a_missing_plan_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot read"):
        rekindle.load(tmp_path / "none.json")


def test_a_step_that_does_not_repeat_itself_fails_the_check() -> None:
    """checkpoint() must not hand back a model whose numbers it could not confirm."""

    class Restless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * time.perf_counter_ns()

    model = Restless()
    with pytest.raises(rekindle.ParityError, match="loss is"):
        rekindle.checkpoint(model, torch.rand(2, 4), budget=1.0)
    assert "forward" not in model.__dict__


def test_every_error_has_one_root() -> None:
    for error in (TraceError, InfeasibleBudget, rekindle.PlanMismatch, rekindle.ParityError, FormatError, UsageError):
        assert issubclass(error, RekindleError)


def test_an_error_says_what_led_to_it_and_shows_no_other() -> None:
    """A model that reads a tensor printed 150 lines: PyTorch's own error, and everything between."""
    with pytest.raises(TraceError) as e:
        rekindle.checkpoint(Branching(), torch.ones(2, 4), budget=0.5, strict=True)
    shown = "".join(traceback.format_exception(e.value))
    assert "direct cause" not in shown
    assert "During handling" not in shown
    assert "DataDependent" not in shown
    with pytest.raises(ParityError) as second:
        handles_another()
    assert "During handling" not in "".join(traceback.format_exception(second.value))


def handles_another() -> None:
    try:
        raise KeyError("first")
    except KeyError:
        raise ParityError("second")  # noqa: B904


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (
            (torch.ones(2, 4), torch.ones(2, 4)),
            "called with 2 positional arguments: a tuple or list stands for positional",
        ),
        ({"x": torch.ones(2, 4), "y": torch.ones(2)}, "called with the keyword arguments x, y: "),
    ],
)
def test_a_sample_that_is_taken_apart_explains_itself_where_forward_complains(sample: Any, words: str) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return self.layer(pair[0]) + pair[1]

    with pytest.raises(
        TraceError, match=r"write an argument that is itself a tuple, list or dict as \(argument,\)"
    ) as e:
        rekindle.checkpoint(Pair(), sample, budget=0.5)
    assert words in str(e.value)
    assert "direct cause" not in "".join(traceback.format_exception(e.value))
