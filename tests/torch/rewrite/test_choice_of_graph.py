"""The graphs that are searched for a plan: the captured one, and rewritten ones if its largest op prevents a smaller plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import sweep
from rekindle.ask import Budget, Fraction, Goal, MaxOverhead, PlanOptions
from rekindle.model.floor import single_op
from rekindle.model.plan import Plan
from rekindle.planning import variants
from rekindle.planning.planner import plan_graph
from rekindle.torch import trace as trace_module
from rekindle.torch.costs.node_costs import Cost
from rekindle.torch.rewrite.candidates import Rewrites
from rekindle.torch.rewrite.family import TraceFamily
from rekindle.torch.serve.plan_trace import plan_rewritten
from rekindle.torch.trace import Trace
from rewritten_steps import OPTIONS, convolutions, traced

AUTO = replace(OPTIONS, solver="auto", time_limit=10.0)


class Searches:
    """Makes plans, and keeps the graphs that were searched."""

    def __init__(self, captured: Trace) -> None:
        self.captured = captured
        self.searched: list[str] = []
        self.efforts: list[str] = []

    def make(self, made: Trace, options: PlanOptions) -> Plan:
        self.searched.append("captured" if made.graph.hash == self.captured.graph.hash else "rewritten")
        self.efforts.append(options.effort)
        return plan_graph(made.graph, options)

    def plan(self, goal: Goal, effort: str = AUTO.effort) -> Plan:
        self.searched.clear()
        self.efforts.clear()
        return plan_rewritten(self.captured, replace(AUTO, goal=goal, effort=effort), self.make)


def one_large_layer() -> Searches:
    """The first convolution and its pool take nearly all of the memory."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(1024, 4))
    return Searches(traced(net, torch.rand(8, 3, 32, 32)))


def many_equal_layers() -> Searches:
    torch.manual_seed(0)
    return Searches(traced(nn.Sequential(*(nn.Linear(64, 64) for _ in range(12))), torch.rand(64, 64)))


def test_where_the_largest_op_binds_the_captured_step_is_not_searched() -> None:
    searches = one_large_layer()
    plan = searches.plan(MaxOverhead(0.1))
    assert plan.rewriting is not None
    assert searches.searched == ["rewritten"]
    captured = plan_graph(searches.captured.graph, replace(AUTO, goal=MaxOverhead(0.1)))
    assert plan.peak_bytes < captured.peak_bytes


@pytest.mark.parametrize("goal", [MaxOverhead(0.1), Fraction(0.62)])
def test_the_best_rewritten_step_is_searched_with_the_effort_that_was_asked_for(goal: Goal) -> None:
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    net = nn.Sequential(*first, nn.Flatten(), nn.Linear(4096, 4))
    searches = Searches(traced(net, torch.rand(32, 3, 32, 32)))
    assert searches.plan(goal, "normal").rewriting is not None
    assert searches.searched[-1] == "rewritten"
    assert searches.efforts[-1] == "normal"
    for effort in ("quick", "thorough"):
        searches.plan(goal, effort)
        assert set(searches.efforts) == {effort}


def test_where_much_must_wait_no_rewrites_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = many_equal_layers()
    monkeypatch.setattr(Rewrites, "in_slices", lambda *_: pytest.fail("rewrites are looked for"))
    assert searches.plan(MaxOverhead(0.08)).rewriting is None
    assert searches.searched == ["captured"]


def test_within_a_roomy_budget_no_rewrites_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = many_equal_layers()
    monkeypatch.setattr(Rewrites, "smaller_saves", lambda *_: pytest.fail("rewrites are looked for"))
    plan = searches.plan(Fraction(0.5))
    assert plan.overhead > variants.CHEAP_OVERHEAD
    assert searches.searched == ["captured"]


@pytest.mark.parametrize(("overhead", "may"), [(0.5, True), (0.0, False)])
def test_a_rewritten_step_is_searched_if_it_can_cost_less(overhead: float, may: bool) -> None:
    """No schedule costs less than one that recomputes nothing."""
    searches = one_large_layer()
    options = replace(AUTO, goal=Fraction(1.0))
    choice = variants.Choice(TraceFamily(searches.captured, options, searches.make), options)
    made = choice.graph(choice.smaller_saves)
    plan = replace(plan_graph(searches.captured.graph, options), overhead=overhead)
    assert made is not None
    assert choice.may_beat(made, options.goal, plan, plan.peak_bytes) == may


@sweep
def test_of_plans_of_equal_memory_the_cheaper_one_is_taken() -> None:
    """Within much overhead the captured step reaches the peak of the rewritten one, at less extra cost."""
    searches = Searches(traced(*convolutions(4, 8, 16)))
    goal = MaxOverhead(0.5)
    options = replace(AUTO, goal=goal, cost="unit")
    captured = plan_graph(searches.captured.graph, options)
    plan = plan_rewritten(searches.captured, options, searches.make)
    assert (plan.peak_bytes, plan.overhead) <= (captured.peak_bytes, captured.overhead)


class Wide(nn.Module):
    """Blocks whose hidden layer is the largest tensor, and that keep a mask each."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(32, 128) for _ in range(6))
        self.down = nn.ModuleList(nn.Linear(128, 32) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(nn.functional.dropout(up(x).relu(), 0.1))
        return x


@sweep
def test_near_the_floor_smaller_saves_are_searched_though_the_bound_is_weak() -> None:
    torch.manual_seed(0)
    searches = Searches(traced(Wide(), torch.rand(64, 32)))
    peaks = []
    for overhead in (0.15, 0.19, 0.3):
        plan = searches.plan(MaxOverhead(overhead))
        captured = plan_graph(searches.captured.graph, replace(AUTO, goal=MaxOverhead(overhead)))
        assert plan.peak_bytes <= captured.peak_bytes
        peaks.append(plan.peak_bytes)
    assert peaks == sorted(peaks, reverse=True)


@sweep
def test_a_larger_budget_near_the_floor_is_not_slower() -> None:
    torch.manual_seed(0)
    searches = Searches(traced(Wide(), torch.rand(64, 32)))
    graph = searches.captured.graph
    floor = single_op(graph).bytes - graph.resident_bytes
    extra = [searches.plan(Budget(graph.resident_bytes + int(x * floor))).overhead for x in (1.245, 1.3, 1.4, 1.6)]
    assert extra == sorted(extra, reverse=True)


@sweep
def test_where_packing_is_dear_the_step_is_rewritten_without_smaller_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU packing took more than the goal allowed, and nothing was rewritten: neither a convolution's backward in two
    calls, which costs nothing, nor a region in slices."""
    real = trace_module.node_costs

    def dear(nodes: Sequence[Any], **options: Any) -> list[Cost]:
        costs = zip(nodes, real(nodes, **options), strict=True)
        return [replace(c, seconds=c.seconds * (1e4 if "rekindle" in str(n.target) else 1)) for n, c in costs]

    monkeypatch.setattr(trace_module, "node_costs", dear)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(),
        nn.Linear(1024, 4),
    )  # fmt: skip
    captured = rekindle.trace(net, torch.rand(8, 16, 32, 32, requires_grad=True), target="rtx2080ti", progress=False)
    options = replace(AUTO, goal=MaxOverhead(0.3), cost="seconds")
    plan = plan_rewritten(captured, options, lambda made, o: plan_graph(made.graph, o))
    assert plan.rewriting is not None
    assert not plan.rewriting.ops_of("saves")
    assert plan.peak_bytes < plan_graph(captured.graph, options).peak_bytes
    assert plan.overhead <= 0.3 + 1e-9


def test_where_slices_that_round_bring_little_those_of_the_same_bits_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a GPT's plan with parity="close" took more memory than the bitwise one."""
    searches = one_large_layer()
    goal = MaxOverhead(0.3)
    bitwise = searches.plan(goal)
    assert bitwise.rewriting is not None
    assert bitwise.rewriting.slices
    real = Rewrites.in_slices
    monkeypatch.setattr(Rewrites, "in_slices", lambda self, allowed: real(self, allowed) if allowed.bits else ())
    close = plan_rewritten(
        searches.captured, replace(AUTO, goal=goal, parity="close"), lambda made, o: plan_graph(made.graph, o)
    )
    assert close.peak_bytes <= bitwise.peak_bytes
