"""The exact search against all schedules that the judge accepts, enumerated in plain Python."""

from __future__ import annotations

import heapq
import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rekindle.exact.search import fits, least_peak, solve
from rekindle.model.graph import BOUNDARY, Graph, Op, Value
from rekindle.model.judge import simulate
from rekindle.model.schedule import Schedule
from rekindle.problem import Problem
from rekindle.solvers.exact import exact
from strategies import chains, dags, examples, graphs, joint_graphs, schedules, u_nets

Front = list[tuple[int, float]]


def brute_force(graph: Graph) -> Front:
    """(peak, seconds) of the undominated schedules, by the judge's rules read forwards, in order of rising peak.

    The state is what is live and which ops that may run only once have run; every run of every op, over every input
    that it may overwrite, and every single free is tried.
    """
    produced = {v for op in graph.ops for v in op.outputs}
    keep = {v for v in graph.keep if v in produced}

    def held(live: frozenset[int]) -> int:
        return sum(graph.values[v].bytes for v in live)

    start: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    todo = [(graph.resident_bytes, 0.0, 0, start)]
    cheapest: dict[object, float] = {}
    front: Front = []
    count = 0
    while todo:
        peak, seconds, _, (live, ran) = heapq.heappop(todo)
        if cheapest.get((live, ran), math.inf) <= seconds:
            continue
        cheapest[live, ran] = seconds
        if keep <= live and (not front or seconds < front[-1][1]):
            front.append((peak, seconds))
        after = [(peak, seconds, (live - {v}, ran)) for v in live]
        for i, op in enumerate(graph.ops):
            if not (set(op.inputs) & produced) <= live or i in ran:
                continue
            now = ran if op.recompute else ran | {i}
            for into in (None, *(v for v in op.inplace if v in live)):
                costing = op.outputs if into is None else op.outputs[1:]
                if into is not None and graph.values[op.outputs[0]].bytes > graph.values[into].bytes:
                    continue
                during = graph.resident_bytes + held(live) + op.workspace
                during += sum(graph.values[v].bytes for v in costing)
                new = (live | set(op.outputs)) - {into}
                after.append((max(peak, during), seconds + op.seconds, (new, now)))
        for p, s, state in after:
            if cheapest.get(state, math.inf) > s:
                count += 1
                heapq.heappush(todo, (p, s, count, state))
    return front


def read_backwards(graph: Graph, cap: int, weights: np.ndarray) -> float:
    """Least cost of a schedule within `cap`: Dijkstra over the sets of values still needed, none of them left out."""
    needed = [int(i) for i in np.flatnonzero(graph.needed)]
    made = {v for i in needed for v in graph.ops[i].outputs}

    def held(values: frozenset[int]) -> int:
        return graph.resident_bytes + sum(graph.values[v].bytes for v in values)

    start: tuple[frozenset[int], frozenset[int]] = (frozenset(graph.keep) & made, frozenset())
    todo, cheapest, count = [(0.0, 0, start)], {start: 0.0}, 0
    while todo and held(start[0]) <= cap:
        cost, _, (wanted, ran) = heapq.heappop(todo)
        if not wanted:
            return cost
        if cheapest[wanted, ran] < cost:
            continue
        for i in needed:
            op = graph.ops[i]
            if not set(op.outputs) & wanted or i in ran:
                continue
            inputs, first = frozenset(op.inputs) & made, graph.values[op.outputs[0]].bytes
            during = held(wanted | inputs | set(op.outputs)) + op.workspace
            if any(v in made - wanted and graph.values[v].bytes >= first for v in op.inplace):
                during -= first
            state = (wanted - set(op.outputs)) | inputs, ran if op.recompute else ran | {i}
            more = cost + float(weights[i])
            if during <= cap and more < cheapest.get(state, math.inf):
                count += 1
                cheapest[state] = more
                heapq.heappush(todo, (more, count, state))
    return math.inf


@examples(60)
@given(st.one_of(dags(8), chains(4), joint_graphs(4), u_nets(2)), st.data())
def test_ops_that_cost_nothing(graph: Graph, data: st.DataObject) -> None:
    """In FLOPs most ops cost nothing, and the search takes short cuts through them."""
    n = len(graph.ops)
    free = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool)
    weights = np.where(free, 0.0, graph.weights())
    least = solve(graph, weights).peak_bound
    for cap in (least - 1, least, least + data.draw(st.integers(1, 12))):
        cheapest, found = read_backwards(graph, cap, weights), solve(graph, weights, limit=cap)
        assert found.proven
        assert found.cost_bound == pytest.approx(cheapest, abs=1e-9)
        if cheapest < math.inf:
            smallest = solve(graph, weights, max_cost=cheapest).peak_bound
            assert smallest <= cap
            assert read_backwards(graph, smallest - 1, weights) > cheapest


@examples(25)
@given(st.one_of(dags(6), joint_graphs(4)), st.integers(0, 12))
def test_what_coarser_models_leave_out_is_not_lost(graph: Graph, more: int) -> None:
    weights = graph.weights()
    # Graphs this small have no negligible values.
    with mock.patch("rekindle.exact.search.NEGLIGIBLE_SHARES", (0.4, 0.15, 0.0)):
        least = solve(graph, weights).peak_bound
        assert least_peak(graph, weights, 1e9, 100_000).peak_bound == least
        found = solve(graph, weights, limit=least + more)
    cheapest = read_backwards(graph, least + more, weights)
    assert found.proven
    assert found.schedule is not None
    assert found.cost_bound == pytest.approx(cheapest, abs=1e-9)
    judged = simulate(graph, found.schedule)
    assert judged.peak_bytes <= least + more
    assert judged.seconds == pytest.approx(cheapest, abs=1e-9)


def small() -> st.SearchStrategy[Graph]:
    return st.one_of(dags(4), chains(3), joint_graphs(3), u_nets(1))


@examples(60)
@given(small())
def test_every_point_of_the_front(graph: Graph) -> None:
    front = brute_force(graph)
    weights = graph.weights()
    least = solve(graph, weights)
    assert least.proven
    assert least.peak_bound == front[0][0]
    for i, (peak, seconds) in enumerate(front):
        cheapest = solve(graph, weights, limit=peak)
        smallest = solve(graph, weights, max_cost=seconds)
        assert cheapest.proven
        assert smallest.proven
        assert cheapest.cost_bound == pytest.approx(seconds, rel=1e-9)
        assert smallest.peak_bound == peak
        assert cheapest.schedule is not None
        assert smallest.schedule is not None
        judged = simulate(graph, cheapest.schedule)
        assert (judged.peak_bytes <= peak, judged.seconds) == (True, seconds)
        judged = simulate(graph, smallest.schedule)
        assert (judged.peak_bytes, judged.seconds <= seconds) == (peak, True)
        below = solve(graph, weights, limit=peak - 1)
        assert below.proven
        if i == 0:
            assert (below.schedule, below.cost_bound) == (None, math.inf)
        else:
            assert below.cost_bound == pytest.approx(front[i - 1][1], rel=1e-9)


@given(data=st.data(), graph=graphs(), nodes=st.integers(1, 200))
def test_bounds_hold_when_the_search_is_cut_short(data: st.DataObject, graph: Graph, nodes: int) -> None:
    judged = simulate(graph, data.draw(schedules(graph)))
    weights = graph.weights()
    assert solve(graph, weights, nodes=nodes).peak_bound <= judged.peak_bytes
    assert solve(graph, weights, max_cost=judged.seconds, nodes=nodes).peak_bound <= judged.peak_bytes
    within = solve(graph, weights, limit=judged.peak_bytes, nodes=nodes)
    assert within.cost_bound <= judged.seconds * (1 + 1e-9)


@examples(50)
@given(data=st.data(), graph=graphs())
def test_as_a_solver_it_reaches_what_is_asked(data: st.DataObject, graph: Graph) -> None:
    weights = graph.weights()
    judged = simulate(graph, data.draw(schedules(graph)))
    least = min(simulate(graph, s).peak_bytes for s in exact(Problem(graph, weights)))
    assert least >= solve(graph, weights).peak_bound
    assume(not any(op.inplace for op in graph.ops))  # the judge accepts writes in place that this solver does not use
    assert least == solve(graph, weights).peak_bound
    found = [simulate(graph, s) for s in exact(Problem(graph, weights, limit=judged.peak_bytes))]
    assert min(s.seconds for s in found if s.peak_bytes <= judged.peak_bytes) <= judged.seconds
    found = [simulate(graph, s) for s in exact(Problem(graph, weights, max_overhead=judged.overhead))]
    assert min(s.peak_bytes for s in found if s.overhead <= judged.overhead + 1e-9) <= judged.peak_bytes


def step(n: int) -> Graph:
    """A step of a chain of n unit ops."""
    ops = [Op(f"f{i}", (i,), (i + 1,), 1.0) for i in range(n)]
    ops.append(Op(BOUNDARY, (n,), (n + 1,), recompute=False))
    ops += [Op(f"b{n - k}", (n - 1 - k, n + 1 + k), (n + 2 + k,), 1.0, backward=True) for k in range(n)]
    return Graph(tuple(Value(1) for _ in range(2 * n + 2)), tuple(ops), (2 * n + 1,))


def test_a_chain_of_forty_ops_is_solved() -> None:
    graph = step(20)
    found = solve(graph, np.asarray(graph.weights()), limit=15)
    assert found.proven
    assert found.schedule is not None
    assert simulate(graph, found.schedule).seconds == found.cost_bound == 40 + 21 - 15


def test_runs_that_cost_nothing_may_be_repeated_within_no_cost() -> None:
    ops = (Op("f", (0,), (1,)), Op(BOUNDARY, (1,), (2,), recompute=False), Op("b", (2,), (3,), backward=True))
    graph = Graph(tuple(Value(1) for _ in range(4)), ops, (1, 3))
    assert solve(graph, graph.weights(), max_cost=0.0).peak_bound == 2


def test_large_graphs_are_declined() -> None:
    graph = step(80)
    assert not fits(graph)
    assert list(exact(Problem(graph, graph.weights()))) == [Schedule.baseline(graph, "exact")]
