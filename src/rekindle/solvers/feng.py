"""Optimal gradient checkpointing for arbitrary graphs, by division tree.

Feng, Huang, Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs, CVPR 2021, arXiv:1808.00079.

Problem: of the forward tensors, choose those to keep, so that what is kept and the longest segment between kept ones
take the fewest bytes. Each segment is run again once, when backward comes to it: the last one too. What the source and
the target of the DAG hold is there in any case, and not counted.

Optimality: for this objective, among kept sets that follow the division tree: a part is one segment, or it is opened,
and then a branch or complicate part keeps all vertices at which it is divided and a linear one any of them. On a chain
that is every kept set. The objective is static: it counts no gradients, no workspace and no time, and it counts all
that is kept even when the first segment is run again, when most of it is gone.

Complexity: for a limit on the longest segment the cheapest kept set takes O(n) (a shortest path with a sliding window;
the paper's takes O(n^2)). The paper tries each of the O(n^2) bytes that a segment can hold as the limit. Here limits
are tried best bound first and most are never tried: what is kept only grows as the limit falls, so no limit from a to
b can give less than a + what is kept at b. Worst case O(n^3), the paper's O(n^4).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ..kernels import feng as kernel
from ..schedule import Schedule
from ..structure.division import Part, division_tree
from ..structure.forward import Dag, forward_dag
from ..structure.saved import runs_from_saved
from .base import Problem
from .registry import register


class Kept(NamedTuple):
    """vertices : kept, without source and target. value : bytes of the objective. tried : limits that were tried."""

    vertices: list[int]
    value: int
    tried: int


@register(
    "feng",
    graphs="any",
    objective="bytes kept + bytes in the longest segment (forward tensors only; no gradients, no time)",
    optimal="for its objective, among kept sets that follow the division tree",
    complexity="O(n^3), in practice near O(n^2)",
    citation="Feng, Huang, Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs, CVPR 2021, "
    "arXiv:1808.00079",
)
def feng(problem: Problem) -> Iterator[Schedule]:
    """The optimal kept set of the division tree. Single level: one extra forward, whatever the budget."""
    forward = forward_dag(problem.graph)
    if forward is None:
        yield Schedule.baseline(problem.graph, "feng")
        return
    saved = forward.saved(cheapest(forward.dag).vertices)
    yield Schedule.from_runs(problem.graph, runs_from_saved(problem.graph, saved), "feng")


def cheapest(dag: Dag) -> Kept:
    """The kept set of least objective, among those that follow the division tree."""
    return cheapest_of_tree(division_tree(dag), dag)


def cheapest_of_tree(parts: list[Part], dag: Dag) -> Kept:
    """`cheapest`, for a division tree and the bytes of each vertex."""
    arrays = _arrays(parts, dag)
    kept = np.empty(len(dag.cost), np.bool_)
    best = Kept([], parts[0].cost, 0)
    # Limits a to b that are still open, where above b already `held` bytes are kept, as (least value, a, b, held).
    least = max((p.cost for p in parts if not p.children), default=0)
    stretches = [(least, least, parts[0].cost - 1, 0)]
    tried = 0
    while stretches:
        bound, a, b, held = heapq.heappop(stretches)
        if bound >= best.value:
            break
        b = min(b, best.value - held - 1)
        limit = (a + b) // 2
        total, longest, following = map(int, kernel.cheapest_kept(limit, *arrays, kept))
        tried += 1
        if total + longest < best.value:
            best = Kept(np.flatnonzero(kept).tolist(), total + longest, 0)
        for low, high, above in ((a, longest - 1, total), (following, b, held)):
            if low <= high and low + above < best.value:
                heapq.heappush(stretches, (low + above, low, high, above))
    return best._replace(tried=tried)


def _arrays(parts: list[Part], dag: Dag) -> list[np.ndarray]:
    """The tree as the kernel takes it, and its scratch space."""
    child_ptr, child_ids = _rows(p.children for p in parts)
    vertex_ptr, vertex_ids = _rows(p.vertices for p in parts)
    n, m = len(parts), len(child_ids)
    return [
        np.array([p.kind for p in parts], np.int64), np.array([p.cost for p in parts], np.int64),
        child_ptr, child_ids, vertex_ptr, vertex_ids, dag.cost, dag.inside,
        np.empty(n, np.int64), np.empty(m, np.int64), np.empty(m, np.int64), np.empty(m, np.int64),
        np.empty(m + 1, np.int64), np.empty(n, np.bool_),
    ]  # fmt: skip


def _rows(rows: Iterable[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    rows = list(rows)
    ptr = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(r) for r in rows], out=ptr[1:])
    return ptr, np.array([x for r in rows for x in r], np.int64)
