"""Small DAGs, and the division tree and its kept sets by definition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product

import numpy as np
from hypothesis import strategies as st

from rekindle.structure.division import BRANCH, COMPLICATE, LEAF, LINEAR
from rekindle.structure.forward import Dag

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
