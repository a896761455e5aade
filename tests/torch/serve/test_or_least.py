"""A budget with `or_least`: where no plan keeps it, the plan of least memory takes its place and says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from command_line import Ran, step
from marks import sweep
from models_in_parts import routed
from rekindle import InfeasibleBudget, PartsPlan, Plan, UsageError
from rekindle.ask import Budget, LeastMemory
from rekindle.integrations.saved_plan import checkpoint_with
from rekindle.model.formats import graph_to_json

QUICK: dict[str, Any] = {"effort": "quick", "progress": False}


def net() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(3))
    ), torch.randn(64, 8)


def same_plan(plan: Plan | PartsPlan, path: Path) -> Plan | PartsPlan:
    """The plan, from a file."""
    plan.save(path)
    read = rekindle.load(path)
    assert (read.goal, read.options.goal, read.options.or_least) == (plan.goal, plan.options.goal, True)
    assert read.sentence.partition(", solved")[0].startswith(plan.sentence.partition(" step time")[0])
    return read


def test_a_graph_s_plan_says_both_figures() -> None:
    with pytest.raises(InfeasibleBudget, match="or_least=True"):
        rekindle.plan(step(), budget=110)
    plan = rekindle.plan(step(), budget=110, or_least=True, **QUICK)
    least = rekindle.plan(step(), minimize="memory", **QUICK)
    assert (plan.peak_bytes, plan.schedule, plan.goal) == (least.peak_bytes, least.schedule, LeastMemory())
    assert plan.sentence.startswith(
        f"budget not met: takes {plan.peak_bytes} B, the least that was found, where 110 B were asked"
    )
    assert plan.figures()["missed"] == {"budget": 110}


def test_a_budget_that_is_kept_is_kept() -> None:
    plan = rekindle.plan(step(), budget=150, or_least=True, **QUICK)
    assert (plan.goal, plan.sentence[:5]) == (Budget(150), "fits:")
    assert "missed" not in plan.figures()


@pytest.mark.parametrize("budget", [pytest.param(0.05, marks=sweep), 4000])
def test_a_model_trains_by_the_least_memory(budget: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, x = net()
    rekindle.checkpoint(model, x, budget, or_least=True, effort="quick")
    plan = model.forward.plan
    assert plan.sentence in capsys.readouterr().err
    assert plan.sentence.startswith("budget not met: takes ")
    text = json.dumps(same_plan(plan, tmp_path / "plan.json").to_json())
    assert checkpoint_with(text, net()[0], x, {"budget": budget, "or_least": True, **QUICK}) == ""
    assert "another" in checkpoint_with(text, net()[0], x, {"minimize": "memory", **QUICK})
    model(torch.randn(32, 8)).sum().backward()  # a new shape aims at the budget again, and misses it too
    assert model.forward.last is not None


@sweep
def test_parts_too(tmp_path: Path) -> None:
    model, sample = routed()
    with pytest.raises(InfeasibleBudget, match="or_least=True"):
        rekindle.checkpoint(model, sample, 0.05, **QUICK)
    plan = rekindle.checkpoint(model, sample, 0.05, or_least=True, **QUICK).forward.plan
    assert isinstance(plan, PartsPlan)
    assert plan.sentence.startswith("budget not met: takes ")
    same_plan(plan, tmp_path / "parts.json")


def test_the_command_line_has_it(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps(graph_to_json(step())))
    refused = Ran(capfd, "solve", graph, "--budget", "110")
    assert (refused.code, "--or-least" in refused.err) == (3, True)
    done = Ran(capfd, "solve", graph, "--budget", "110", "--or-least")
    assert (done.code, "budget not met" in done.out) == (0, True)


def test_it_needs_a_budget() -> None:
    with pytest.raises(UsageError, match="or_least=True is for a budget"):
        rekindle.plan(step(), minimize="memory", or_least=True)
    with pytest.raises(UsageError, match="or_least"):
        rekindle.plan(step(), budget=150, or_least=1)  # type: ignore[arg-type]
