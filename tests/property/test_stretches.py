"""Efforts "quick" and "normal": order of answers, the way down, and large ends that wait."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace

import numpy as np
from hypothesis import assume, example, given
from hypothesis import strategies as st

from graphs_by_hand import chain, unrolled
from marks import sweep
from rekindle import Graph, InfeasibleBudget, Op, Schedule, Value, simulate
from rekindle.ask import Fraction, Goal, LeastMemory, MaxOverhead, PlanOptions
from rekindle.planning.planner import plan_graph
from rekindle.portfolio import recent, way_down
from rekindle.portfolio.auto import auto
from rekindle.portfolio.point_seeds import postponed
from rekindle.portfolio.stretches import Stretches
from rekindle.problem import Problem, choose
from rekindle.structure.archive import entry
from rekindle.structure.reduced import Reduced
from strategies import examples, joint_graphs, u_nets

efforts = st.sampled_from(["quick", "normal"])
families = st.one_of(joint_graphs(max_ops=9), u_nets(max_depth=4), st.sampled_from([chain(30), unrolled(20)]))


def plain_peak(graph: Graph) -> int:
    return simulate(graph, Schedule.baseline(graph)).peak_bytes


@examples(40)
@given(graph=families, effort=efforts, data=st.data())
def test_a_larger_budget_is_never_slower_in_whatever_order_budgets_are_asked(
    graph: Graph, effort: str, data: st.DataObject
) -> None:
    top = plain_peak(graph)
    assume(top - graph.resident_bytes >= 8)
    problem = Problem(graph, graph.weights(), effort=effort)
    stretches = Stretches.of(problem)
    limits = data.draw(st.lists(st.integers(0, top - graph.resident_bytes), min_size=2, max_size=6, unique=True))
    extra = {}
    for room in limits:
        found = stretches.answers(replace(problem, limit=graph.resident_bytes + room))
        assert all(e.peak == entry(graph, problem.weights, e.runs).peak for e in found)
        extra[room] = min((e.extra for e in found if e.peak <= room), default=np.inf)
    assert all(extra[a] >= extra[b] for a, b in itertools.pairwise(sorted(limits)))


def test_a_rewrite_is_cut_at_round_shares_of_the_captured_steps_peak() -> None:
    """Budgets are shares of that peak. Cut at shares of the rewrite's own, a search aimed beside them."""
    graph = chain(400)
    problem = Problem(graph, graph.weights(), effort="quick", plain_bytes=1000)
    assert {299.0, 499.0, 899.0} < {*Stretches.of(problem).cells}
    assert {119.0, 199.0, 359.0} < {*Stretches.of(replace(problem, plain_bytes=None)).cells}


@examples(40)
@given(graph=families, effort=efforts, data=st.data())
def test_more_overhead_never_gives_a_larger_plan(graph: Graph, effort: str, data: st.DataObject) -> None:
    problem = Problem(graph, graph.weights(), effort=effort)
    stretches = Stretches.of(problem)
    allowed = data.draw(st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0, 3.0]), min_size=2, max_size=4, unique=True))
    peaks = {}
    for overhead in allowed:
        found = stretches.answers(replace(problem, max_overhead=overhead))
        peaks[overhead] = min(e.peak for e in found if e.extra <= overhead * problem.base_cost * (1 + 1e-9))
    assert all(peaks[a] >= peaks[b] for a, b in itertools.pairwise(sorted(allowed)))


goals = st.sampled_from([LeastMemory(), Fraction(0.3), Fraction(0.6), MaxOverhead(0.1)])


@examples(40)
@given(graph=families, goal=goals, effort=efforts)
def test_however_short_the_time_there_is_a_plan_or_a_refusal(graph: Graph, goal: Goal, effort: str) -> None:
    """With no time left solvers give no seeds, and the least of none was asked for."""
    recent.forget()
    with contextlib.suppress(InfeasibleBudget):
        plan_graph(graph, PlanOptions(goal, effort=effort, time_limit=1e-6, cache=False))


@examples(25)
@given(graph=families, data=st.data())
def test_the_way_down_does_not_depend_on_timings(graph: Graph, data: st.DataObject) -> None:
    """Costs of ops counted for a thousandth of what the search saw, which was enough."""
    found = []
    for _ in range(2):
        seconds = data.draw(st.lists(st.integers(0, 9), min_size=len(graph.ops), max_size=len(graph.ops)))
        timed = graph.with_costs([10.0**s for s in seconds])
        problem = Problem(timed, timed.weights(), effort="quick")
        down = way_down.WayDown(problem)
        down.descend(problem)
        found.append(down.sequences)
    assert [runs.tolist() for runs in found[0]] == [runs.tolist() for runs in found[1]]


@examples(25)
@given(graph=families)
def test_a_later_pass_of_the_way_down_loses_no_smaller_sequence(graph: Graph) -> None:
    """The archive holds the cheapest of almost equal peaks: on a U-Net the least memory was above the frontier's."""
    problem = Problem(graph, graph.weights(), effort="normal")
    down, least = way_down.WayDown(problem), []
    for passes in range(6):
        down.descend(problem, passes)
        least.append(min(entry(graph, problem.weights, runs).peak for runs in down.sequences))
    assert least == sorted(least, reverse=True)


@examples(25)
@given(graph=families)
def test_what_passes_of_the_way_down_reach_does_not_depend_on_who_asked_before(graph: Graph) -> None:
    """One way down serves all efforts: "normal" ends in the middle of the one that "thorough" has gone."""
    found = []
    for before in ((), ("thorough",), ("quick", "thorough")):
        recent.forget()
        problems = [Problem(graph, graph.weights(), effort=effort) for effort in (*before, "normal")]
        reached = [[*map(way_down.reached, (p, p), (way_down.EASY_PASSES, None))] for p in problems]
        found.append([[runs.tolist() for runs in r.sequences] for r in reached[-1]])
    assert found[0] == found[1] == found[2]


@sweep
def test_thorough_takes_no_more_memory_than_normal_and_no_more_than_its_frontiers_end() -> None:
    graph = chain(30)
    least = {}
    for effort in ("normal", "thorough"):
        recent.forget()
        problem = Problem(graph, graph.weights(), effort=effort, work=0.05)
        least[effort] = min(simulate(graph, s).peak_bytes for s in auto(problem))
    end = min(simulate(graph, s).peak_bytes for s in auto(replace(problem, whole=True)))
    assert least["thorough"] <= least["normal"]
    assert least["thorough"] <= end


def test_the_least_plan_is_as_small_whatever_ops_take() -> None:
    graph = unrolled(40)
    least = []
    for k in (1, 2):
        timed = graph.with_costs([1.0 + (i * k) % 7 for i in range(len(graph.ops))])
        recent.forget()
        problem = Problem(timed, timed.weights(), effort="normal")
        least.append(min(e.peak for e in Stretches.of(problem).answers(problem)))
    assert least[0] == least[1]


def with_a_large_gradient(stages: int) -> Graph:
    """A chain whose last op has a weight, with a gradient far larger than all that the chain saves."""
    values = [Value(4) for _ in range(stages + 1)]
    ops = [Op(f"f{i}", (i,), (i + 1,), seconds=1.0) for i in range(stages)]

    def new(size: int) -> int:
        values.append(Value(size))
        return len(values) - 1

    gradient = new(4)
    ops.append(Op("boundary", (stages,), (gradient,), recompute=False))
    weight, handed_over = new(100), new(0)
    ops.append(Op("weight", (gradient, stages - 1), (weight,), seconds=1.0, backward=True))
    ops.append(Op("hand over", (weight,), (handed_over,), backward=True))
    for i in reversed(range(stages)):
        ops.append(Op(f"b{i}", (gradient, i), (new(4),), seconds=1.0, backward=True))
        gradient = ops[-1].outputs[0]
    return Graph(tuple(values), tuple(ops), (gradient, handed_over))


def test_a_large_gradient_that_nothing_reads_waits_for_the_end() -> None:
    graph = with_a_large_gradient(30)
    reduced = Reduced(graph)
    order = np.arange(len(reduced.ops))
    late = postponed(order, reduced.regions.second_begin, reduced.arrays, reduced.before)
    assert sorted(late) == sorted(order)
    end_of_forward = 31 * 4  # the activations, and the gradient that arrives
    peak = simulate(graph, Schedule.from_runs(graph, reduced.whole_runs(late).tolist())).peak_bytes
    assert peak == end_of_forward + 4 < plain_peak(graph) - 80
    problem = Problem(graph, graph.weights(), limit=peak, effort="normal")
    assert choose(problem, Stretches.of(problem).answers(problem))[0].extra == 0


def awaited_by_a_left_out_op() -> Graph:
    """A U-Net whose last op waits for an op with a large result, but only by way of ops that a search leaves out."""
    inner = [("f0", (0,), (1,)), ("f1", (1,), (2,)), ("f2", (2,), (3,)), ("f3", (3, 2), (4,)), ("f4", (4, 1), (5,))]
    outer = [("b4", (6,), (7, 8)), ("b3", (7,), (9, 10)), ("b2", (9,), (11,)), ("add", (11, 10), (12,)), ("b1", (12,), (13,)),
             ("add", (13, 8), (14,)), ("b0", (14,), (15,))]  # fmt: skip
    ops = [
        *(Op(*o) for o in inner),
        Op("boundary", (5,), (6,), recompute=False),
        *(Op(*o, backward=True) for o in outer),
    ]
    return Graph(tuple(Value(int(v in (0, 4, 7, 15))) for v in range(16)), tuple(ops), (15,))


@example(graph=awaited_by_a_left_out_op())
@given(graph=st.one_of(joint_graphs(max_ops=9), u_nets()))
def test_an_order_with_late_ends_is_valid(graph: Graph) -> None:
    reduced = Reduced(graph)
    begin = reduced.regions.second_begin
    if begin:
        late = postponed(np.arange(len(reduced.ops)), begin, reduced.arrays, reduced.before)
        simulate(graph, Schedule.from_runs(graph, reduced.whole_runs(late).tolist()))
