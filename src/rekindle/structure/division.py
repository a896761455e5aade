"""The division tree: an s-t DAG taken apart into ever smaller closed sets.

A closed set [s, t] holds the vertices and edges between s and t, where no vertex inside has an edge to the outside. It is
divided

linear      at its splitting vertices, those on every path from s to t, if it has any;
branch      else into its parallel parts: the connected parts without s and t; an edge from s to t is one;
complicate  else into its maximal closed sets other than itself: the maximal split, which is unique.

Each part is divided in turn, down to single edges. With an edge from t to s added and directions forgotten, a closed set
is a part that two vertices cut off, and the tree is the tree of triconnected components: series, parallel, rigid. That is
how the maximal split is found here.

Feng, Huang, Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs, CVPR 2021, arXiv:1808.00079.

Complexity: each level of the tree costs O(edges); a complicate part of which b vertices have more than two edges costs
O(b edges) more. Looking at every pair of vertices, as the definition has it, would cost O(vertices^2 edges).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..kernels import feng as kernel
from .forward import Dag

LEAF, LINEAR, BRANCH, COMPLICATE = kernel.LEAF, kernel.LINEAR, kernel.BRANCH, kernel.COMPLICATE
Ends = list[tuple[int, int]]  # tail and head of each edge
Division = tuple[int, list[int], list["Part"]]  # kind, vertices, children


@dataclass
class Part:
    """A closed set of the tree.

    edges : the ids of all its edges, by tail.
    vertices : the vertices at which it is divided, without its source and target; of a linear part in their order.
    children : ids of the parts into which it is divided; of a linear part in their order.
    cost : bytes inside it: of its edges, and of its vertices other than source and target.
    """

    source: int
    target: int
    edges: list[int]
    kind: int = LEAF
    vertices: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    cost: int = 0


def division_tree(dag: Dag) -> list[Part]:
    """The parts of the tree. The first is the whole DAG; each comes before its children."""
    ends = dag.edges
    parts = [_whole(dag, ends)]
    for part in parts:  # grows while it is read
        if len(part.edges) > 1:
            division = _linear(part, ends) or _branch(part, ends) or _complicate(part, ends)
            part.kind, part.vertices, children = division
            part.children = list(range(len(parts), len(parts) + len(children)))
            parts += children
    for part in reversed(parts):
        if part.kind == LEAF:
            part.cost = int(dag.edge_cost[part.edges[0]])
        else:
            part.cost = int(dag.inside[part.vertices].sum()) + sum(parts[c].cost for c in part.children)
    return parts


def splitting_vertices(dag: Dag) -> list[int]:
    """The vertices on every path from source to target, in order, these two included. O(edges log edges)."""
    ends = dag.edges
    whole = _whole(dag, ends)
    division = _linear(whole, ends)
    return [whole.source, *(division[1] if division else ()), whole.target]


def _whole(dag: Dag, ends: Ends) -> Part:
    return Part(0, len(dag.cost) - 1, sorted(range(len(ends)), key=ends.__getitem__))


def _linear(part: Part, ends: Ends) -> Division | None:
    """Divide at the vertices on every path, those past which no edge leads: one sweep over the edges."""
    at, starts = [part.source], [0]
    reach = part.source
    for k, e in enumerate(part.edges):
        tail, head = ends[e]
        if tail == reach != part.source:
            at.append(tail)
            starts.append(k)
        reach = max(reach, head)
    if len(at) == 1:
        return None
    at.append(part.target)
    starts.append(len(part.edges))
    children = [Part(at[i], at[i + 1], part.edges[starts[i] : starts[i + 1]]) for i in range(len(at) - 1)]
    return LINEAR, at[1:-1], children


def _branch(part: Part, ends: Ends) -> Division | None:
    """Divide into parallel parts: the sets of vertices that edges join without passing the source or the target."""
    root: dict[int, int] = {}

    def find(v: int) -> int:
        while root.setdefault(v, v) != v:
            root[v] = root[root[v]]
            v = root[v]
        return v

    for e in part.edges:
        tail, head = ends[e]
        if tail != part.source and head != part.target:
            root[find(tail)] = find(head)
    groups: dict[int, list[int]] = {}
    for e in part.edges:
        tail, head = ends[e]
        inside = head if tail == part.source else tail
        groups.setdefault(part.target if inside == part.target else find(inside), []).append(e)
    if len(groups) == 1:
        return None
    return BRANCH, [], [Part(part.source, part.target, edges) for edges in groups.values()]


def _complicate(part: Part, ends: Ends) -> Division:
    """Divide into maximal closed sets. Each edge goes to the set that has one of its ends inside, or else to the set
    between its ends, which is often the edge alone."""
    vertices = sorted({v for e in part.edges for v in ends[e]})
    local = {v: i for i, v in enumerate(vertices)}
    tail = np.array([local[ends[e][0]] for e in part.edges], np.int64)
    head = np.array([local[ends[e][1]] for e in part.edges], np.int64)
    first, last, _ = kernel.maximal_closed_sets(*neighbours(len(vertices), tail, head))
    groups: dict[tuple[int, int], list[int]] = {}
    for e, a, b in zip(part.edges, tail.tolist(), head.tolist(), strict=True):
        inside = a if first[a] >= 0 else b
        closed = (int(first[inside]), int(last[inside])) if first[inside] >= 0 else (a, b)
        groups.setdefault(closed, []).append(e)
    divided_at = [v for v in vertices[1:-1] if first[local[v]] < 0]
    return COMPLICATE, divided_at, [Part(vertices[a], vertices[b], edges) for (a, b), edges in groups.items()]


def neighbours(n: int, tail: np.ndarray, head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compressed rows: the neighbours of each vertex, directions forgotten, the first and last vertex joined too."""
    a = np.concatenate([tail, head, [0, n - 1]])
    b = np.concatenate([head, tail, [n - 1, 0]])
    ptr = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(a, minlength=n), out=ptr[1:])
    return ptr, b[np.argsort(a, kind="stable")]
