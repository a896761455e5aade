"""Feng and Huang's search: the forward DAG, the division tree, and the kept set against brute force."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.kernels import feng as kernel
from rekindle.model.graph import BOUNDARY, Graph
from rekindle.model.judge import simulate
from rekindle.planning import registry
from rekindle.problem import Problem
from rekindle.solvers.feng import cheapest
from rekindle.structure.division import COMPLICATE, LEAF, division_tree, neighbours, splitting_vertices
from rekindle.structure.forward import Dag
from small_dags import (
    NAMES,
    brute_force,
    canonical,
    chain_of,
    chains,
    dag_of,
    general,
    objective,
    series_parallel,
    whole,
)
from strategies import examples, graphs


# -- the tree ------------------------------------------------------------------------------------------------------
@given(st.one_of(general(), series_parallel()))
def test_the_division_tree_is_the_one_of_the_definitions(dag: Dag) -> None:
    ends = dag.edges
    found = {(NAMES[p.kind], p.source, p.target, frozenset(ends[e] for e in p.edges)) for p in division_tree(dag)}
    assert found == canonical(whole(dag))


@given(st.one_of(general(most=14), series_parallel(most=14)))
def test_parts_partition_the_edges_and_are_closed(dag: Dag) -> None:
    ends = dag.edges
    parts = division_tree(dag)
    assert sorted(e for p in parts if p.kind == LEAF for e in p.edges) == list(range(len(ends)))
    for i, p in enumerate(parts):
        assert (p.kind == LEAF) == (len(p.edges) == 1) == (not p.children)
        assert all(c > i for c in p.children)
        if p.children:
            assert sorted(e for c in p.children for e in parts[c].edges) == sorted(p.edges)
        inner = {v for e in p.edges for v in ends[e]} - {p.source, p.target}
        touching = {e for e, (a, b) in enumerate(ends) if a in inner or b in inner}
        assert touching <= set(p.edges)
        assert p.cost == sum(int(dag.inside[v]) for v in inner) + sum(int(dag.edge_cost[e]) for e in p.edges)


@given(series_parallel(most=20))
def test_series_parallel_graphs_have_no_complicate_part(dag: Dag) -> None:
    assert all(p.kind != COMPLICATE for p in division_tree(dag))


@given(general())
def test_splitting_vertices_are_on_every_path(dag: Dag) -> None:
    last = len(dag.cost) - 1

    def leads_to_target(v: int, without: int) -> bool:
        return v == last or any(a == v and b != without and leads_to_target(b, without) for a, b in dag.edges)

    expected = [v for v in range(1, last) if not leads_to_target(0, without=v)]
    assert splitting_vertices(dag) == [0, *expected, last]


def test_cells_that_read_two_cells_back() -> None:
    """Two cells of three branches each, over two states: nothing splits it, but each branch is a part."""
    edges = [(0, 1), (0, 2), (1, 2)]
    n = 3
    for _ in range(2):
        older, newer = n - 2, n - 1
        edges += [(older, n), (n, n + 1), (n + 1, n + 3), (newer, n + 2), (n + 2, n + 3), (newer, n + 3)]
        n += 4
        edges.append((newer, n))
        edges.append((n - 1, n))
        n += 1
    parts = division_tree(dag_of(edges, [1] * n))
    assert {NAMES[p.kind] for p in parts} == {"linear", "branch", "complicate", "leaf"}


# -- the kept set --------------------------------------------------------------------------------------------------
@given(chains())
def test_on_a_chain_no_kept_set_is_better(dag: Dag) -> None:
    inner = range(1, len(dag.cost) - 1)
    least = min(objective(dag, kept) for r in range(len(inner) + 1) for kept in combinations(inner, r))
    found = cheapest(dag)
    assert found.value == least == objective(dag, found.vertices)


@examples(300)
@given(st.one_of(general(most=7), series_parallel(most=7)))
def test_no_kept_set_that_follows_the_tree_is_better(dag: Dag) -> None:
    assert cheapest(dag).value == brute_force(dag)


@given(st.one_of(general(most=12), series_parallel(most=12)))
def test_never_worse_than_keeping_nothing_everything_or_splitting_vertices(dag: Dag) -> None:
    found = cheapest(dag)
    cuts = splitting_vertices(dag)[1:-1]
    sets = [(), *combinations(cuts, 1), *combinations(cuts, 2), cuts, range(1, len(dag.cost) - 1)]
    assert all(found.value <= objective(dag, kept) for kept in sets)
    # A part that is not opened counts as one segment, even where it falls into parallel ones
    assert objective(dag, found.vertices) <= found.value


@pytest.mark.parametrize("n", [25, 100, 400, 2500])
def test_a_uniform_chain_takes_two_roots(n: int) -> None:
    found = cheapest(chain_of([1] * n))
    assert 2 * math.sqrt(n) - 3 <= found.value <= 2 * math.sqrt(n)
    assert len(found.vertices) == pytest.approx(math.sqrt(n), rel=0.2)


def test_one_edge() -> None:
    assert cheapest(dag_of([(0, 1)], [3, 4], charged=[7])) == ([], 7, 0)


# -- scale, counted -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [300, 3000])
def test_few_limits_are_tried(n: int) -> None:
    rng = np.random.default_rng(0)
    for sizes in (np.full(n, 2**20), rng.integers(1, 2**26, n), 2**26 // (1 + np.arange(n) // 50)):
        found = cheapest(chain_of(sizes.tolist()))
        assert found.tried <= 20 * math.sqrt(n), "of n^2 / 2 numbers of bytes that a segment can have"
        assert found.value == objective_of_chain(sizes, found.vertices)


def objective_of_chain(sizes: np.ndarray, kept: Sequence[int]) -> int:
    at = [0, *kept, len(sizes) + 1]
    sums = np.concatenate([[0], np.cumsum(sizes)])
    longest = max(int(sums[b - 1] - sums[a]) for a, b in zip(at, at[1:]))  # noqa: B905
    return int(sum(sizes[v - 1] for v in kept)) + longest


def test_a_network_of_cells_takes_few_steps() -> None:
    """1,200 vertices that nothing splits, as in the networks of searched cells."""
    edges, older, newer, n = [(0, 1), (0, 2), (1, 2)], 1, 2, 3
    for _ in range(20):
        states = [older, newer]
        for k in range(5):
            ends = []
            for read in (states[k % len(states)], states[-1]):
                edges.append((read, n))
                edges += [(i, i + 1) for i in range(n, n + 5)]
                ends.append(n + 5)
                n += 6
            edges += [(end, n) for end in ends]
            states.append(n)
            n += 1
        edges += [(state, n) for state in states[2:]]
        older, newer, n = newer, n, n + 1
    edges += [(older, n), (newer, n)]
    dag = dag_of(edges, [1] * (n + 1))
    ptr, near = neighbours(n + 1, dag.tail, dag.head)
    branching = int((np.diff(ptr) > 2).sum())
    _, _, work = kernel.maximal_closed_sets(ptr, near)
    assert work <= (branching + 2) * len(near)
    assert branching < 300
    parts = division_tree(dag)
    assert sum(len(p.edges) for p in parts) <= 6 * len(edges), "few levels"
    assert cheapest(dag).tried <= 100


# -- the solver ------------------------------------------------------------------------------------------------------
@given(graphs())
def test_any_graph_gets_a_valid_schedule(graph: Graph) -> None:
    schedules = list(registry.get("feng").solve(Problem(graph, graph.weights("unit"))))
    assert len(schedules) == 1
    assert schedules[0].solver == "feng"
    judged = simulate(graph, schedules[0])
    assert judged.runs.max(initial=0) <= 2
    if not any(op.name == BOUNDARY or op.backward for op in graph.ops):
        assert judged.overhead == 0
