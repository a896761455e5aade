"""The portfolio on models: what it found too late, or not at all, before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import models
import rekindle
from graphs_by_hand import unrolled
from marks import sweep
from rekindle import Schedule, bounds, simulate, zoo
from rekindle.ask import Budget, LeastMemory, MaxOverhead, PlanOptions
from rekindle.planning import registry
from rekindle.planning.frontiers import CLOSER_MOST_OPS
from rekindle.planning.planner import plan_graph
from rekindle.portfolio import anew, proposals, way_down
from rekindle.problem import Problem
from rekindle.zoo.vision import import_library


@sweep
def test_what_fits_by_one_cost_fits_by_another() -> None:
    """Element-wise ops cost no FLOPs: the search by FLOPs stopped above what the search by seconds reached."""
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self, d: int = 64) -> None:
            super().__init__()
            self.norm, self.attention = nn.LayerNorm(d), nn.MultiheadAttention(d, 4, batch_first=True)
            self.mlp = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(x)
            x = x + self.attention(y, y, y, need_weights=False)[0]
            return x + self.mlp(x)

    graph = rekindle.trace(Block(), torch.randn(8, 128, 64), target="rtx2080ti").graph
    least = min(plan_graph(graph, PlanOptions(LeastMemory(), cost=c)).peak_bytes for c in ("seconds", "unit"))
    assert plan_graph(graph, PlanOptions(LeastMemory(), cost="flops")).peak_bytes <= least
    assert plan_graph(graph, PlanOptions(Budget(least), cost="flops")).peak_bytes <= least


def _small_resnet() -> rekindle.Trace:
    resnet = import_library("torchvision.models.resnet")
    with FakeTensorMode():
        model = resnet.ResNet(resnet.Bottleneck, [3, 2, 1, 1])
        return rekindle.trace(model, torch.rand(8, 3, 224, 224), target="rtx2080ti")


@sweep
def test_overhead_that_is_left_is_used() -> None:
    """The search by FLOPs ended 6 % above what the overhead allowed, and left it at that."""
    trace = _small_resnet()
    least = rekindle.plan(trace, minimize="memory").peak_bytes
    budget = int(1.0002 * least)
    assert rekindle.plan(trace, budget=budget).flops_overhead < 0.5
    assert rekindle.plan(trace, max_overhead=0.5, cost="flops").peak_bytes <= budget < 1.01 * least


@sweep
def test_within_a_budget_that_only_another_cost_reaches_the_cheapest_is_taken() -> None:
    """Asked for by seconds, what fits was found by op runs; of that the smallest was taken, whatever it cost."""
    trace = _small_resnet()
    budget = trace.graph.resident_bytes + 109_260_000
    within, least = (
        rekindle.plan(trace, **goal, effort="thorough") for goal in ({"budget": budget}, {"minimize": "memory"})
    )
    assert within.overhead < min(0.5, least.overhead)


@sweep
def test_within_an_overhead_nothing_is_dearer_than_at_the_peak_it_reaches() -> None:
    graph = rekindle.trace(*models.make("gpt")).graph
    small = plan_graph(graph, PlanOptions(MaxOverhead(0.5), cost="flops"))
    cheap = plan_graph(graph, PlanOptions(Budget(small.peak_bytes), cost="flops"))
    assert (cheap.peak_bytes, cheap.overhead) >= (small.peak_bytes, small.overhead - 1e-9)


@sweep
def test_the_frontier_ends_where_the_least_memory_is() -> None:
    """It ended where the first sweep did: at the U-Net's quarter it was twice as dear as a plan."""
    graph = rekindle.trace(*zoo.load("unet", fake=True, batch=2, image=32, width=8, depth=3), target="rtx2080ti").graph
    least = plan_graph(graph, PlanOptions(LeastMemory(), cost="unit"))
    assert rekindle.frontier(graph, cost="unit")[-1].peak_bytes == least.peak_bytes


@sweep
def test_the_frontier_of_a_larger_graph_does_without_the_way_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closer look at its low end took ResNet-50's from 3 to 9 seconds."""
    looked: list[bool] = []
    reached = way_down.reached

    def noted(problem: Problem, *passes: int) -> Any:
        looked.append(len(problem.graph.ops) > CLOSER_MOST_OPS)
        return reached(problem, *passes)

    monkeypatch.setattr(way_down, "reached", noted)
    for steps in (20, 210):
        assert len(rekindle.frontier(unrolled(steps), cost="unit", cache=False)) > 1
    assert set(looked) == {False}


@sweep
@pytest.mark.parametrize(
    ("name", "options", "solver", "cost", "more"),
    [
        ("unet", {"batch": 2, "image": 32, "width": 8, "depth": 3}, "beam", "unit", 1.05),
        ("unet3d", {}, "dtr", "seconds", 1),
    ],
)
def test_near_the_floor_one_search_alone_is_no_better(
    name: str, options: dict[str, int], solver: str, cost: str, more: float
) -> None:
    """There moves from plans that hold more lead nowhere: a beam alone was cheaper by a fourth, DTR by half."""
    graph = rekindle.trace(*zoo.load(name, fake=True, **options), target="rtx2080ti").graph
    smallest = plan_graph(graph, PlanOptions(LeastMemory(), solver=solver, cost=cost))
    budget = graph.resident_bytes + int(more * smallest.activation_peak_bytes)
    goal = Budget(budget)
    ours = plan_graph(graph, PlanOptions(goal, cost=cost, effort="thorough"))
    theirs = plan_graph(graph, PlanOptions(goal, solver=solver, cost=cost))
    assert ours.overhead <= min(theirs.overhead, smallest.overhead)


@sweep
def test_near_the_floor_plans_by_flops_are_judged_by_the_cost_that_was_asked() -> None:
    """Planned by FLOPs, `storages` and `hierarchical` gave smaller or faster steps than by seconds on large models."""
    graph = rekindle.trace(*models.make("gpt"), target="rtx2080ti").graph
    seconds, flops = graph.weights("seconds"), graph.weights("flops")
    low = float(bounds.single_op(graph).bytes - graph.resident_bytes)
    groups = {c: anew.groups(Problem(graph, graph.weights(c)), low, 2 * low) for c in ("seconds", "flops")}
    assert len(groups["seconds"]) == len(groups["flops"]) + 1
    for name in anew.BY_FLOPS:
        found = list(proposals.proposed(Problem(graph, seconds), name, flops))
        theirs = [s.runs for s in registry.get(name).solve(Problem(graph, flops))]
        assert [e.runs.tolist() for e in found] == [list(runs) for runs in theirs]
        for e in found:
            judged = simulate(graph, Schedule.from_runs(graph, e.runs, name), "seconds")
            assert e.extra == pytest.approx(judged.overhead * seconds[graph.needed].sum())
            assert e.peak == judged.peak_bytes - graph.resident_bytes
