"""Feng and Huang's search: the forward DAG, the division tree, and the kept set against brute force."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rekindle import registry
from rekindle.kernels import feng as kernel
from rekindle.model.graph import BOUNDARY, Graph, Op, Value
from rekindle.model.judge import simulate
from rekindle.problem import Problem
from rekindle.solvers.feng import cheapest
from rekindle.structure.division import BRANCH, COMPLICATE, LEAF, LINEAR, division_tree, neighbours, splitting_vertices
from rekindle.structure.forward import Dag, forward_dag
from strategies import examples, graphs

Edge = tuple[int, int]
NAMES = {LEAF: "leaf", LINEAR: "linear", BRANCH: "branch", COMPLICATE: "complicate"}


# -- small DAGs ----------------------------------------------------------------------------------------------------
def dag_of(edges: Iterable[Edge], cost: Sequence[int], inside: Sequence[int] = (), charged: Sequence[int] = ()) -> Dag:
    edges = list(edges)
    tail, head = np.array(edges, np.int64).T.copy()
    return Dag(
        np.array(cost, np.int64), np.array(inside or cost, np.int64), tail, head,
        np.array(charged or [0] * len(edges), np.int64),
    )  # fmt: skip


def chain_of(sizes: Sequence[int]) -> Dag:
    """Source and target, and between them a chain of vertices of these sizes."""
    return dag_of([(i, i + 1) for i in range(len(sizes) + 1)], [0, *sizes, 0])


def with_sizes(draw: st.DrawFn, edges: Sequence[Edge]) -> Dag:
    n = 1 + max(h for _, h in edges)
    rows = [draw(st.lists(st.integers(0, 12), min_size=n, max_size=n)) for _ in range(2)]
    charged = draw(st.lists(st.sampled_from([0, 0, 0, 1, 5]), min_size=len(edges), max_size=len(edges)))
    return dag_of(edges, rows[0], rows[1] if draw(st.booleans()) else rows[0], charged)


@st.composite
def chains(draw: st.DrawFn, most: int = 9) -> Dag:
    return with_sizes(draw, [(i, i + 1) for i in range(draw(st.integers(1, most)))])


@st.composite
def general(draw: st.DrawFn, most: int = 8) -> Dag:
    """Any DAG with all vertices on a path from the first to the last."""
    n = draw(st.integers(2, most))
    edges = set(draw(st.lists(st.sampled_from(list(combinations(range(n), 2))), max_size=2 * n)))
    for v in range(1, n - 1):
        if not any(h == v for _, h in edges):
            edges.add((draw(st.integers(0, v - 1)), v))
        if not any(t == v for t, _ in edges):
            edges.add((v, draw(st.integers(v + 1, n - 1))))
    return with_sizes(draw, sorted(edges or {(0, n - 1)}))


@st.composite
def series_parallel(draw: st.DrawFn, most: int = 8) -> Dag:
    """Grown from one edge by dividing edges and by putting two edges beside one."""
    edges = [(0, 1)]
    for new in range(2, draw(st.integers(2, most))):
        a, b = draw(st.sampled_from(edges))
        if draw(st.booleans()):
            edges.remove((a, b))
        edges += [(a, new), (new, b)]
    # Vertex 1 is the target. Renumber in a topological order.
    order: list[int] = []
    left = {v for e in edges for v in e}
    while left:
        ready = min(v for v in left if not any(h == v and t in left for t, h in edges))
        left.remove(ready)
        order.append(ready)
    at = {v: i for i, v in enumerate(order)}
    return with_sizes(draw, sorted((at[a], at[b]) for a, b in edges))


# -- the division tree and its kept sets, by definition ------------------------------------------------------------
class Plain:
    """A part of the division tree, built from the definitions alone."""

    def __init__(self, edges: frozenset[Edge], s: int, t: int):
        self.edges, self.s, self.t = edges, s, t
        self.inner = {v for e in edges for v in e} - {s, t}
        self.kind, self.children = "leaf", []
        if len(edges) > 1:
            self.kind, pieces = self._divide()
            self.children = [Plain(frozenset(e), a, b) for (a, b), e in pieces]
        self.vertices = {v for c in self.children for v in (c.s, c.t)} - {s, t}

    def reach(self, v: int, backward: bool = False) -> set[int]:
        found, stack = {v}, [v]
        while stack:
            u = stack.pop()
            for a, b in self.edges:
                a, b = (b, a) if backward else (a, b)
                if a == u and b not in found:
                    found.add(b)
                    stack.append(b)
        return found

    def _divide(self) -> tuple[str, list[tuple[Edge, set[Edge]]]]:
        cuts = sorted(v for v in self.inner if len(self.reach(v) | self.reach(v, True)) == len(self.inner) + 2
                      and not any(a < v < b for a, b in self.edges))  # fmt: skip
        if cuts:
            at = [self.s, *cuts, self.t]
            return "linear", [((a, b), {e for e in self.edges if a <= e[0] < b}) for a, b in zip(at, at[1:])]  # noqa: B905
        groups = self._hanging_together()
        if len(groups) > 1:
            return "branch", [((self.s, self.t), g) for g in groups]
        closed = {(a, b): self._largest_closed(a, b) for a, b in combinations(sorted({self.s, self.t, *self.inner}), 2)}
        closed.pop((self.s, self.t))
        taken: set[Edge] = set()
        pieces = []
        for pair, edges in sorted(closed.items(), key=lambda row: -len(row[1])):
            if edges and not edges & taken:
                taken |= edges
                pieces.append((pair, edges))
        assert taken == self.edges
        return "complicate", pieces

    def _hanging_together(self) -> list[set[Edge]]:
        groups: list[set[Edge]] = []
        for e in self.edges:
            ends = set(e) - {self.s, self.t}
            near = [g for g in groups if ends & ({v for f in g for v in f} - {self.s, self.t})]
            groups = [g for g in groups if g not in near] + [set.union({e}, *near)]
        return groups

    def _largest_closed(self, a: int, b: int) -> set[Edge]:
        """Edges of the largest set between a and b without an edge from inside to outside."""
        inside = (self.reach(a) & self.reach(b, True)) - {a, b}
        while True:
            edges = {e for e in self.edges if set(e) <= inside | {a, b}}
            out = {v for e in self.edges - edges for v in e} & inside
            if not out:
                return edges
            inside -= out


def canonical(part: Plain) -> set[tuple[str, int, int, frozenset[Edge]]]:
    rows = {(part.kind, part.s, part.t, part.edges)}
    return rows.union(*(canonical(c) for c in part.children))


def whole(dag: Dag) -> Plain:
    return Plain(frozenset(dag.edges), 0, len(dag.cost) - 1)


def options(part: Plain, dag: Dag) -> Iterator[tuple[int, int]]:
    """(bytes kept, longest segment) of every kept set that follows the division tree, the part opened."""
    charged = dict(zip(dag.edges, dag.edge_cost.tolist(), strict=True))

    def inside(p: Plain) -> int:
        return sum(int(dag.inside[v]) for v in p.inner) + sum(charged[e] for e in p.edges)

    def any_way(p: Plain) -> list[tuple[int, int, bool]]:
        opened = {(*o, True) for o in options(p, dag)} if p.children else set()
        return [(0, inside(p), False), *opened]

    if part.kind != "linear":
        kept = sum(int(dag.cost[v]) for v in part.vertices)
        for ways in product(*(any_way(c) for c in part.children)):
            yield kept + sum(w[0] for w in ways), max(w[1] for w in ways)
        return
    cuts = sorted(part.vertices)
    for ways in product(*(any_way(c) for c in part.children)):
        for keep in product([False, True], repeat=len(cuts)):
            bounds = [True, *keep, True]
            if any(w[2] and not (bounds[i] and bounds[i + 1]) for i, w in enumerate(ways)):
                continue
            kept, longest, run = sum(w[0] for w in ways), 0, 0
            for i, w in enumerate(ways):
                run = w[1] if w[2] else run + w[1]
                longest = max(longest, run)
                if bounds[i + 1]:
                    run = 0
                    kept += int(dag.cost[cuts[i]]) if i < len(cuts) else 0
                else:
                    run += int(dag.inside[cuts[i]])
            yield kept, longest


def brute_force(dag: Dag) -> int:
    part = whole(dag)
    closed = int(dag.inside[1:-1].sum() + dag.edge_cost.sum())
    return min([closed, *(sum(o) for o in (options(part, dag) if part.children else ()))])


def objective(dag: Dag, kept: Iterable[int]) -> int:
    """Bytes kept + most bytes that hang together without what is kept; an edge between kept ones is a segment too."""
    gone = {0, len(dag.cost) - 1, *kept}
    sums: list[tuple[set[int], int]] = []
    for (a, b), charged in zip(dag.edges, dag.edge_cost.tolist(), strict=True):
        ends = {a, b} - gone
        near = [s for s in sums if s[0] & ends]
        sums = [s for s in sums if s not in near]
        sums.append((ends.union(*(s[0] for s in near)), charged + sum(s[1] for s in near)))
    return sum(int(dag.cost[v]) for v in kept) + max(c + sum(int(dag.inside[v]) for v in s) for s, c in sums)


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


# -- from a graph to its forward DAG --------------------------------------------------------------------------------
class Step:
    """A step by hand: forward ops, the boundary, and one backward op that reads what is to be saved."""

    def __init__(self) -> None:
        self.values = [Value(1000)]
        self.ops: list[Op] = []
        self.saved: list[int] = []

    def op(
        self, name: str, inputs: Sequence[int], *sizes: int, backward: Sequence[int] = (0,), once: bool = False
    ) -> int:
        """The first value that the op makes; backward reads those at the positions `backward`."""
        made = [len(self.values) + i for i in range(len(sizes))]
        self.values += [Value(s) for s in sizes]
        self.ops.append(Op(name, tuple(inputs), tuple(made), seconds=1.0, recompute=not once))
        self.saved += [made[i] for i in backward]
        return made[0]

    def graph(self, *read: int) -> Graph:
        last = len(self.values)
        values = (*self.values, Value(1), Value(1))
        boundary = Op(BOUNDARY, read, (last,), recompute=False)
        backward = Op("backward", (last, *self.saved), (last + 1,), seconds=1.0, backward=True)
        return Graph(values, (*self.ops, boundary, backward), (last + 1,))


def names(graph: Graph) -> list[str]:
    forward = forward_dag(graph)
    assert forward is not None
    return [graph.ops[o].name if o >= 0 else "-" for o in forward.ops]


def test_statistics_and_buffer_updates_leave_a_chain_a_chain() -> None:
    step = Step()
    x, tokens = 0, []
    for i in range(4):
        before = step.op(f"snapshot{i}", [0], 4, backward=(), once=True)
        x = step.op(f"conv{i}", [x], 100)
        x = step.op(f"norm{i}", [x, before], 100, 4, 4, backward=(1,))
        update = step.op(f"update{i}", [x + 2], 4, backward=(), once=True)
        tokens.append(step.op(f"copy{i}", [update, before], 0, backward=(), once=True))
        x = step.op(f"relu{i}", [x], 100)
    graph = step.graph(x, *tokens)
    forward = forward_dag(graph)
    assert forward is not None
    assert names(graph) == ["-", *(f"{kind}{i}" for i in range(4) for kind in ("conv", "norm", "relu"))]
    assert forward.dag.edges == [(i, i + 1) for i in range(12)]
    assert forward.dag.cost.tolist() == [0] + [100, 104, 100] * 4, "small statistics are kept with their norm"
    assert forward.dag.inside.tolist() == [0] + [100, 4, 100] * 4, "backward does not read what norm hands to relu"
    assert forward.always == (x,)


def test_what_only_backward_reads_is_charged_to_the_segment_that_ends_there() -> None:
    step = Step()
    a = step.op("conv", [0], 100)
    pooled = step.op("pool", [a], 25, 50, backward=(0, 1))
    out = step.op("fc", [pooled], 10)
    forward = forward_dag(step.graph(out))
    assert forward is not None
    assert forward.dag.cost.tolist() == [0, 100, 25, 10]
    assert forward.dag.edge_cost.tolist() == [0, 50, 0]
    assert forward.saved([2]) == [pooled, out]


def test_side_inputs_make_no_edges() -> None:
    step = Step()
    mask = step.op("mask", [0], 1, backward=())
    x = step.op("embed", [0], 100)
    for i in range(3):
        weight = step.op(f"cast{i}", [0], 30, backward=())
        x = step.op(f"layer{i}", [x, weight, mask], 100)
    graph = step.graph(x)
    forward = forward_dag(graph)
    assert forward is not None
    assert names(graph) == ["-", "embed", "layer0", "layer1", "layer2"]
    assert forward.dag.edge_cost.tolist() == [0, 30, 30, 30]
    assert forward.always == (mask, x)


def test_dense_concatenations_are_a_chain_of_blocks() -> None:
    step = Step()
    features = [step.op("stem", [0], 64)]
    for i in range(5):
        joined = step.op(f"cat{i}", features, sum(step.values[f].bytes for f in features))
        features.append(step.op(f"conv{i}", [step.op(f"norm{i}", [joined], 40)], 16))
    out = step.op("last", features, 64 + 5 * 16)
    forward = forward_dag(step.graph(out))
    assert forward is not None
    found = names(step.graph(out))
    splitting = [found[v] for v in splitting_vertices(forward.dag)]
    assert splitting == ["-", "stem", *(f"cat{i}" for i in range(1, 5)), "last"]
    assert forward.saved([found.index("cat3")]) == sorted([*features[:4], out]), "kept by its parts"


def test_several_results_meet_in_one_target() -> None:
    step = Step()
    a = step.op("a", [0], 5)
    first, second = step.op("b", [a], 7), step.op("c", [a], 9)
    forward = forward_dag(step.graph(first, second))
    assert forward is not None
    assert forward.dag.edges == [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4)]
    assert forward.ops == (-1, 0, 1, 2, -1)
    assert forward.always == (first, second)


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


@given(graphs())
def test_every_vertex_of_a_forward_dag_is_on_a_path(graph: Graph) -> None:
    forward = forward_dag(graph)
    assume(forward is not None)
    n = len(forward.ops)
    tails, heads = set(forward.dag.tail.tolist()), set(forward.dag.head.tolist())
    assert tails == set(range(n - 1))
    assert heads == set(range(1, n))
    assert all(a < b for a, b in forward.dag.edges)
    assert len(set(forward.dag.edges)) == len(forward.dag.edges)
    assert not {v for vs in forward.values for v in vs} - {v for op in graph.ops for v in op.outputs}
