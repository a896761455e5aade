"""The division tree: an s-t DAG taken apart into ever smaller closed sets.

A closed set [s, t] is what lies on paths from s to t where no vertex inside has an edge to the outside. It is divided

linear      at its splitting vertices, those on every path from s to t, where it has any;
branch      else into its parallel parts: what hangs together without s and t; an edge from s to t is one;
complicate  else into its maximal closed sets other than itself, the maximal split, which is unique.

Each part is divided in turn, down to single edges. Undirected and with an edge from t to s put in, closed sets are what
two vertices cut off, and the tree is the tree of triconnected components: series, parallel, rigid. That is how the
maximal split is found here.

Feng, Huang, Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs, CVPR 2021, arXiv:1808.00079.

Complexity: each level of the tree costs O(edges), and a complicate part with b vertices of more than two edges
O(b edges). The authors' enumeration of pairs of vertices costs O(vertices^2 edges).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..kernels import feng as kernel
from .forward import Dag

LEAF, LINEAR, BRANCH, COMPLICATE = kernel.LEAF, kernel.LINEAR, kernel.BRANCH, kernel.COMPLICATE
Piece = tuple[int, int, list[int]]  # source, target, edges


@dataclass
class Part:
    """A closed set of the tree.

    edges : ids of all edges in it.
    vertices : at which it is divided, without its source and target; of a linear part in their order.
    children : ids of its parts; of a linear part in their order.
    cost : bytes inside it: vertices other than source and target, and edges.
    """

    source: int
    target: int
    edges: list[int]
    kind: int = LEAF
    vertices: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    cost: int = 0


def division_tree(dag: Dag) -> list[Part]:
    """The parts of the tree; 0 is the whole DAG, and parts come before their children."""
    ends = list(zip(dag.tail.tolist(), dag.head.tolist(), strict=True))
    everything = sorted(range(len(ends)), key=ends.__getitem__)  # by tail: parts keep this order
    parts = [Part(0, len(dag.cost) - 1, everything)]
    for part in parts:  # grows while it is read
        if len(part.edges) == 1:
            continue
        part.kind, part.vertices, pieces = _linear(part, ends) or _branch(part, ends) or _complicate(part, ends)
        part.children = list(range(len(parts), len(parts) + len(pieces)))
        parts += [Part(*piece) for piece in pieces]
    for part in reversed(parts):
        inside = part.vertices if part.children else ()
        part.cost = sum(int(dag.inside[v]) for v in inside) + sum(parts[c].cost for c in part.children)
        if not part.children:
            part.cost = sum(int(dag.edge_cost[e]) for e in part.edges)
    return parts


def splitting_vertices(dag: Dag) -> list[int]:
    """The vertices on every path from the source to the target, these two included, in order. O(edges)."""
    ends = list(zip(dag.tail.tolist(), dag.head.tolist(), strict=True))
    part = Part(0, len(dag.cost) - 1, sorted(range(len(ends)), key=ends.__getitem__))
    found = _linear(part, ends)
    return [part.source, *(found[1] if found else ()), part.target]


def _linear(part: Part, ends: list[tuple[int, int]]) -> tuple[int, list[int], list[Piece]] | None:
    """A vertex is on every path if no edge leads past it: one sweep over the edges by tail."""
    reach, cuts, starts = part.source, [], [0]
    for k, e in enumerate(part.edges):
        tail, head = ends[e]
        if tail == reach and tail not in (part.source, cuts[-1] if cuts else -1):
            cuts.append(tail)
            starts.append(k)
        reach = max(reach, head)
    if not cuts:
        return None
    at = [part.source, *cuts, part.target]
    starts.append(len(part.edges))
    return LINEAR, cuts, [(at[i], at[i + 1], part.edges[starts[i] : starts[i + 1]]) for i in range(len(at) - 1)]


def _branch(part: Part, ends: list[tuple[int, int]]) -> tuple[int, list[int], list[Piece]] | None:
    s, t = part.source, part.target
    root: dict[int, int] = {}

    def find(v: int) -> int:
        while root.setdefault(v, v) != v:
            root[v] = root[root[v]]
            v = root[v]
        return v

    for e in part.edges:
        tail, head = ends[e]
        if tail != s and head != t:
            root[find(tail)] = find(head)
    groups: dict[int, list[int]] = {}
    for e in part.edges:
        tail, head = ends[e]
        inside = tail if tail != s else head
        groups.setdefault(-1 - e if inside == t else find(inside), []).append(e)
    return (BRANCH, [], [(s, t, edges) for edges in groups.values()]) if len(groups) > 1 else None


def _complicate(part: Part, ends: list[tuple[int, int]]) -> tuple[int, list[int], list[Piece]]:
    """Every edge goes to the maximal closed set that holds one of its ends inside, else to the one that has the same
    source and target, else it is one itself."""
    vertices = sorted({v for e in part.edges for v in ends[e]})
    local = {v: i for i, v in enumerate(vertices)}
    tail = np.array([local[ends[e][0]] for e in part.edges], np.int64)
    head = np.array([local[ends[e][1]] for e in part.edges], np.int64)
    first, last, _ = kernel.maximal_closed_sets(*_neighbours(len(vertices), tail, head))
    groups: dict[tuple[int, int], list[int]] = {}
    for e, a, b in zip(part.edges, tail.tolist(), head.tolist(), strict=True):
        inside = a if first[a] >= 0 else b
        closed = (int(first[inside]), int(last[inside])) if first[inside] >= 0 else (a, b)
        groups.setdefault(closed, []).append(e)
    at = [v for v in vertices[1:-1] if first[local[v]] < 0]
    return COMPLICATE, at, [(vertices[a], vertices[b], edges) for (a, b), edges in groups.items()]


def _neighbours(n: int, tail: np.ndarray, head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compressed rows of neighbours, undirected, with an edge between the first and the last vertex put in."""
    a = np.concatenate([tail, head, [0, n - 1]])
    b = np.concatenate([head, tail, [n - 1, 0]])
    ptr = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(a, minlength=n), out=ptr[1:])
    return ptr, b[np.argsort(a, kind="stable")]
