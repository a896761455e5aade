"""A bound on the peak at the exact cost of a known schedule lies at or below that schedule's peak."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import rekindle
from rekindle import Plan
from rekindle.ask import Fraction, PlanOptions
from rekindle.bounds.staged import staged
from rekindle.planning.planner import plan_graph


@pytest.fixture(scope="module")
def plan() -> Plan:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
    graph = rekindle.trace(model, torch.ones(256, 8), target="h200").graph
    return plan_graph(graph, PlanOptions(Fraction(0.75), solver="exact"))


@pytest.mark.parametrize("stages", [1, 6, 12])
def test_a_schedule_that_costs_exactly_what_is_allowed_counts(plan: Plan, stages: int) -> None:
    """With 12 stages the solver of the program cut the plan off by rounding, and gave a bound above the plan's peak."""
    assert plan.overhead > 0
    weights = plan.graph.weights("seconds")
    assert staged(plan.graph, weights, plan.overhead, stages, integer=True, seconds=2.0).bytes <= plan.peak_bytes
