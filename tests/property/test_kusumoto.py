"""Chains of lower sets against brute force, for both families, and the solver on any graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.graph import Graph
from rekindle.model.judge import simulate
from rekindle.planning import registry
from rekindle.problem import Problem
from rekindle.solvers.kusumoto import TIME_LEVELS, all_lower_sets, budgets, in_levels, spanned, steps, strategies
from rekindle.structure.forward import Dag
from strategies import examples, graphs

Set = frozenset[int]


@st.composite
def dags(draw: st.DrawFn, most: int = 6) -> Dag:
    """Any DAG with all vertices on a path from the first to the last; the first stands for what the caller holds."""
    n = draw(st.integers(2, most))
    edges = set(draw(st.lists(st.sampled_from(list(combinations(range(n), 2))), max_size=2 * n)))
    for v in range(n):
        if v > 0 and not any(h == v for _, h in edges):
            edges.add((draw(st.integers(0, v - 1)), v))
        if v < n - 1 and not any(t == v for t, _ in edges):
            edges.add((v, draw(st.integers(v + 1, n - 1))))
    tail, head = np.array(sorted(edges), np.int64).T.copy()
    cost = np.array([0, *draw(st.lists(st.integers(0, 9), min_size=n - 1, max_size=n - 1))], np.int64)
    return Dag(cost, cost, tail, head, np.zeros(len(edges), np.int64))


def lower_sets(dag: Dag) -> list[Set]:
    n = len(dag.cost)
    every = chain.from_iterable(combinations(range(n), r) for r in range(n + 1))
    return [frozenset(s) for s in every if all(a in s for a, b in dag.edges if b in s)]


def spanned_sets(dag: Dag) -> list[Set]:
    """The empty set, and each vertex with its ancestors."""
    return [frozenset(), *(min((s for s in lower_sets(dag) if v in s), key=len) for v in range(len(dag.cost)))]


def cost_of(dag: Dag, times: Sequence[int], strategy: Sequence[Set]) -> tuple[int, int]:
    """(peak, time made again) of a chain of lower sets, by the paper's definitions."""
    size = lambda vertices: sum(int(dag.cost[v]) for v in vertices)  # noqa: E731
    kept: Set = frozenset()
    peak = time = 0
    for smaller, larger in zip(strategy, strategy[1:]):  # noqa: B905
        block = larger - smaller
        ahead = {b for a, b in dag.edges if a in larger} - larger
        beside = {a for a, b in dag.edges if b in ahead} - larger
        peak = max(peak, size(kept) + 2 * size(block) + size(ahead) + size(beside))
        boundary = {a for a, b in dag.edges if a in larger and b not in larger}
        time += sum(times[v] for v in block - boundary)
        kept |= boundary
    return peak, time


def all_strategies(sets: Sequence[Set], whole: Set, begin: Set = frozenset()) -> Iterator[list[Set]]:
    if begin == whole:
        yield [begin]
        return
    for s in sets:
        if begin < s:
            for rest in all_strategies(sets, whole, s):
                yield [begin, *rest]


def rows(sets: np.ndarray) -> list[Set]:
    return [frozenset(np.flatnonzero(s).tolist()) for s in sets]


@examples(100)
@given(st.data(), dags(), st.booleans())
def test_no_strategy_of_the_family_is_better(data: st.DataObject, dag: Dag, pruned: bool) -> None:
    n = len(dag.cost)
    times = np.array([0, *data.draw(st.lists(st.integers(0, 5), min_size=n - 1, max_size=n - 1))], np.int64)
    found = spanned(dag) if pruned else all_lower_sets(dag, 100)
    assert found is not None
    found = found[np.argsort(found.sum(axis=1), kind="stable")]
    expected = spanned_sets(dag) if pruned else lower_sets(dag)
    assert set(rows(found)) == set(expected)
    chains = steps(dag, times, found)
    costs = [cost_of(dag, times.tolist(), s) for s in all_strategies(list(set(expected)), frozenset(range(n)))]
    tried = budgets(chains, int(dag.cost.sum()))
    assert tried[0] == min(peak for peak, _ in costs), "the first budget is the least that any strategy takes"
    for budget in tried:
        within = [time for peak, time in costs if peak <= budget]
        given_back = [cost_of(dag, times.tolist(), [rows(found)[i] for i in s]) for s in strategies(chains, budget)]
        assert all(peak <= budget for peak, _ in given_back)
        assert {time for _, time in given_back} == {min(within), max(within)}


def test_where_there_are_more_lower_sets_than_asked_for_there_are_none() -> None:
    tail = np.array([0] * 8 + list(range(1, 9)), np.int64)
    head = np.array([*range(1, 9)] + [9] * 8, np.int64)
    cost = np.ones(10, np.int64)
    dag = Dag(cost, cost, tail, head, np.zeros(16, np.int64))
    assert all_lower_sets(dag, 257) is None
    every = all_lower_sets(dag, 258)
    assert every is not None
    assert len(every) == 258, "none, the source with any of eight, and all"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50).filter(any))
def test_levels_add_up(weights: list[float]) -> None:
    levels = in_levels(np.array(weights))
    assert levels.min() >= 0
    assert levels.sum() == pytest.approx(TIME_LEVELS, abs=1) or levels.tolist() == weights


@given(graphs())
def test_any_graph_gets_valid_schedules(graph: Graph) -> None:
    schedules = list(registry.get("kusumoto").solve(Problem(graph, graph.weights("unit"))))
    assert schedules
    for schedule in schedules:
        assert schedule.solver == "kusumoto"
        assert simulate(graph, schedule).runs.max(initial=0) <= 2
