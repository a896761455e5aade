"""No bound lies above what a schedule reaches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs_by_hand import chain
from rekindle import Graph, Op, Schedule, Value, bounds, simulate
from rekindle.exact import search as exact
from rekindle.planning import registry
from rekindle.problem import Problem
from strategies import examples, graphs, schedules


@given(data=st.data(), graph=graphs(), cost=st.sampled_from(["seconds", "flops", "unit"]))
def test_no_bound_is_above_a_schedule(data: st.DataObject, graph: Graph, cost: str) -> None:
    judged = simulate(graph, data.draw(schedules(graph)), cost)
    assert bounds.single_op(graph).bytes <= judged.peak_bytes
    found = bounds.at_overhead(graph, graph.weights(cost), judged.overhead).bytes
    assert graph.resident_bytes + bounds.waits_at_overhead(graph, graph.weights(cost), judged.overhead) <= found
    assert found <= judged.peak_bytes


def test_what_waits_leaves_the_working_set_of_the_op_out() -> None:
    """Nineteen values of one byte wait while the last op of a chain's forward runs, which itself takes two bytes."""
    graph = chain(20)
    weights = graph.weights()
    assert bounds.at_overhead(graph, weights, 0.0).bytes == 21
    assert [bounds.waits_at_overhead(graph, weights, overhead) for overhead in (0.0, 10.0)] == [19, 0]


@given(graph=graphs(), low=st.floats(0, 2), more=st.floats(0, 2))
def test_more_overhead_never_raises_the_bound(graph: Graph, low: float, more: float) -> None:
    weights = graph.weights("seconds")
    assert bounds.at_overhead(graph, weights, low + more).bytes <= bounds.at_overhead(graph, weights, low).bytes


def test_a_chain_that_recomputes_nothing_is_met_exactly() -> None:
    graph = chain(20)
    peak = simulate(graph, Schedule.baseline(graph)).peak_bytes
    assert bounds.at_overhead(graph, graph.weights(), 0.0).bytes == peak


def test_the_bound_falls_by_what_the_extra_cost_can_make_again() -> None:
    graph = chain(20)
    at = [bounds.at_overhead(graph, graph.weights(), extra / 40).bytes for extra in range(0, 20, 4)]
    assert np.all(np.diff(at) <= -4)


def test_the_op_with_the_largest_working_set_is_named() -> None:
    values = tuple(Value(b) for b in (1, 50, 1))
    graph = Graph(
        values, (Op("small", (), (0,)), Op("large", (0,), (1,), workspace=9), Op("end", (1,), (2,))), (2,), 100
    )
    assert bounds.single_op(graph) == (100 + 1 + 50 + 9, 1)
    # What is remembered is the graph's own.
    assert bounds.single_op(graph.with_costs([0.0] * 3, [0, 20, 0])) == (100 + 1 + 50 + 20, 1)
    assert bounds.single_op(graph) == (100 + 1 + 50 + 9, 1)


@given(data=st.data(), graph=graphs(), cost=st.sampled_from(["seconds", "flops", "unit"]))
def test_what_searches_and_programs_certify_holds_for_every_schedule(
    data: st.DataObject, graph: Graph, cost: str
) -> None:
    judged = simulate(graph, data.draw(schedules(graph)), cost)
    weights = graph.weights(cost)
    extra = float(judged.runs @ weights) - float(weights[graph.needed].sum())
    upper = data.draw(st.sampled_from([None, judged.peak_bytes]))
    assert bounds.best(graph, weights, judged.overhead, 0.01, upper).bytes <= judged.peak_bytes
    assert bounds.time_at(graph, weights, judged.peak_bytes) <= extra + 1e-9
    assert bounds.time_at(graph, weights, judged.peak_bytes, 0.01) <= extra + 1e-9


@examples(60)
@given(data=st.data(), graph=graphs(), stages=st.integers(1, 6), integer=st.booleans())
def test_staged_programs_hold_for_every_schedule(data: st.DataObject, graph: Graph, stages: int, integer: bool) -> None:
    judged = simulate(graph, data.draw(schedules(graph)))
    found = bounds.staged(graph, graph.weights(), judged.overhead, stages, integer)
    assert found.bytes <= judged.peak_bytes


def test_more_seconds_raise_the_bound_to_what_is_reached() -> None:
    """Where several gradients wait at once, no single first run tells the peak."""
    graph = chain(12)
    weights = graph.weights()
    assert bounds.at_overhead(graph, weights, 1 / 24).bytes == 11
    assert bounds.best(graph, weights, 1 / 24, 1.0).bytes == 12
    assert bounds.time_at(graph, weights, 8, 1.0) == pytest.approx(5)


def test_what_is_made_again_must_find_its_inputs() -> None:
    """Making the large value again within the cost of one op takes what it is made from, which then must be held."""
    sizes = (1, 1, 8, 1, 1, 1)
    ops = [
        Op("a", (), (0,), 1.0), Op("b", (0,), (1,), 1.0), Op("c", (1,), (2,), 1.0), Op("loss", (2,), (3,), 1.0),
        Op("gradient", (3,), (4,), 1.0, workspace=8), Op("end", (4, 2), (5,), 1.0),
    ]  # fmt: skip
    graph = Graph(tuple(Value(b) for b in sizes), tuple(ops), (5,))
    weights = graph.weights()
    once = float(weights.sum())
    assert bounds.at_overhead(graph, weights, 1 / once).bytes == 10
    assert bounds.staged(graph, weights, 1 / once, 1, True).bytes == 11
    assert bounds.lagrangian(graph, weights, 1 / once).bytes == 11
    assert bounds.best(graph, weights, 1 / once).bytes == 11


@pytest.mark.parametrize("solver", [s.name for s in registry.all_solvers()])
@examples(40)
@given(graph=graphs())
def test_no_solver_goes_below(solver: str, graph: Graph) -> None:
    weights = graph.weights()
    found = list(registry.get(solver).solve(Problem(graph, weights, effort=0.01)))
    assert found
    for schedule in found:
        judged = simulate(graph, schedule)
        assert bounds.best(graph, weights, judged.overhead, 0.02, judged.peak_bytes).bytes <= judged.peak_bytes


@given(data=st.data(), graph=graphs(), depth=st.integers(0, 6), ops=st.integers(0, 8))
def test_looking_ahead_lies_between_one_op_and_every_schedule(
    data: st.DataObject, graph: Graph, depth: int, ops: int
) -> None:
    found = bounds.look_ahead(graph, depth, ops).bytes
    assert bounds.single_op(graph).bytes <= found <= simulate(graph, data.draw(schedules(graph))).peak_bytes


@examples(100)
@given(graph=graphs(), depth=st.integers(1, 6))
def test_looking_ahead_is_not_above_the_least_peak(graph: Graph, depth: int) -> None:
    least = exact.solve(graph, graph.weights())
    assert least.schedule is not None
    assert least.proven
    deepest = bounds.look_ahead(graph, 1000, len(graph.ops)).bytes
    assert bounds.look_ahead(graph, depth, len(graph.ops)).bytes <= deepest
    assert deepest <= simulate(graph, least.schedule).peak_bytes


def two_branches() -> Graph:
    """Two small results, each made from a large value, are read by one op: whichever is made last, the other waits."""
    sizes = (10, 3, 10, 3, 1)
    ops = [
        Op("a", (), (0,), 1.0), Op("small a", (0,), (1,), 1.0), Op("b", (), (2,), 1.0),
        Op("small b", (2,), (3,), 1.0), Op("end", (1, 3), (4,), 1.0, workspace=5),
    ]  # fmt: skip
    return Graph(tuple(Value(b) for b in sizes), tuple(ops), (4,))


def test_looking_ahead_sees_what_waits_beside_a_working_set() -> None:
    graph = two_branches()
    assert bounds.single_op(graph).bytes == 13
    assert [bounds.look_ahead(graph, depth).bytes for depth in (1, 4)] == [16, 16]
    assert simulate(graph, Schedule.baseline(graph)).peak_bytes == 16
    assert bounds.best(graph, graph.weights(), 10.0, 0.01).bytes == 16


def test_looking_ahead_knows_what_must_wait_because_it_is_made_once() -> None:
    """Where the stem runs only once, its result waits while one of the branches goes through its largest op."""
    for recompute, least in ((True, 22), (False, 27)):
        ops = [
            Op("stem", (), (0,), recompute=recompute),
            Op("a", (0,), (1,)), Op("small a", (1,), (2,), workspace=5),
            Op("b", (0,), (3,)), Op("small b", (3,), (4,), workspace=5),
            Op("end", (2, 4), (5,)),
        ]  # fmt: skip
        graph = Graph(tuple(Value(b) for b in (10, 10, 2, 10, 2, 1)), tuple(ops), (5,))
        assert bounds.single_op(graph).bytes == 20
        assert bounds.look_ahead(graph).bytes == least
        assert exact.solve(graph, graph.weights()).peak_bound == least


@given(data=st.data(), graph=graphs(), cost=st.sampled_from(["seconds", "flops", "unit"]))
def test_lagrangian_bounds_hold_for_every_schedule(data: st.DataObject, graph: Graph, cost: str) -> None:
    judged = simulate(graph, data.draw(schedules(graph)), cost)
    through = data.draw(st.sampled_from([None, *range(len(graph.ops))]))
    weights = graph.weights(cost)
    found = bounds.lagrangian(graph, weights, judged.overhead, through)
    least = bounds.at_overhead(graph, weights, judged.overhead) if through is None else bounds.single_op(graph)
    assert least.bytes <= found.bytes <= judged.peak_bytes
