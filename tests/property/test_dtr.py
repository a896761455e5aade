"""DTR as a plan: valid on any graph, within what it promises on chains, and its policy read off by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.graph import BOUNDARY, Graph, Op, Value
from rekindle.model.judge import simulate
from rekindle.model.schedule import Schedule
from rekindle.planning import registry
from rekindle.problem import Problem
from rekindle.solvers.dtr import evicting
from strategies import graphs


@given(graphs(), st.sampled_from([None, 0.3, 0.6, 1.0]))
def test_any_graph_gets_valid_schedules(graph: Graph, part: float | None) -> None:
    plain = simulate(graph, Schedule.baseline(graph)).peak_bytes
    limit = None if part is None else int(part * plain)
    schedules = list(registry.get("dtr").solve(Problem(graph, graph.weights("unit"), limit)))
    assert schedules[0].runs == Schedule.baseline(graph).runs
    for schedule in schedules:
        assert schedule.solver == "dtr"
        simulate(graph, schedule)


@given(graphs())
def test_nothing_is_evicted_where_all_fits(graph: Graph) -> None:
    everything = sum(v.bytes for v in graph.values) + sum(op.workspace for op in graph.ops)
    runs = evicting(graph, graph.weights(), everything)
    assert runs is not None
    assert runs.tolist() == np.flatnonzero(graph.needed).tolist()


def chain(n: int, sizes: list[int] | None = None, costs: list[float] | None = None) -> Graph:
    """Backward op i reads what forward op i read, and the gradient."""
    sizes, costs = sizes or [1] * n, costs or [1.0] * n
    ops = [Op(f"f{i}", (i,), (i + 1,), costs[i]) for i in range(n)]
    ops.append(Op(BOUNDARY, (n,), (n + 1,), recompute=False))
    ops += [Op(f"b{i}", (2 * n - i, i), (2 * n - i + 1,), 1.0, backward=True) for i in range(n - 1, -1, -1)]
    values = [1, *sizes, *([1] * (n + 1))]
    return Graph(tuple(Value(s) for s in values), tuple(ops), (2 * n + 1,))


@pytest.mark.parametrize("n", [36, 100, 256, 400])
def test_a_chain_within_some_roots_takes_few_runs(n: int) -> None:
    graph = chain(n)
    budget = 3 * math.isqrt(n)
    runs = evicting(graph, graph.weights(), budget)
    assert runs is not None
    judged = simulate(graph, Schedule.from_runs(graph, runs.tolist()))
    assert judged.peak_bytes <= budget
    assert len(runs) <= 4 * n


def test_the_least_cost_per_byte_and_time_goes_first() -> None:
    # Where f4 does not fit, 1 has waited longest but costs 8, 3 was used just now, 4 is read
    graph = chain(5, sizes=[10, 10, 10, 10, 1], costs=[8.0, 1.0, 1.0, 1.0, 1.0])
    runs = evicting(graph, graph.weights(), 40)
    assert runs is not None
    again = np.bincount(runs, minlength=len(graph.ops)) - 1
    assert np.flatnonzero(again).tolist() == [1]
