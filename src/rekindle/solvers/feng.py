"""Optimal gradient checkpointing for arbitrary graphs, over the division tree.

Feng, Huang, Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs, CVPR 2021, arXiv:1808.00079.

Problem: of the forward tensors, choose those to keep, so that what is kept and the longest segment between kept ones
take the fewest bytes together. Backward runs each segment again once, the last one too. The source and the target of the
forward DAG stand for values that are there in any case, and are not counted.

Optimality: for this objective, among the kept sets that follow the division tree: a part is one segment, or it is
opened; then a branch or complicate part keeps every vertex at which it is divided, a linear one any of them, and both
ends of each child that is opened in turn. On a chain that is every kept set. The objective is static: it counts no
gradients, no workspace and no time, and it counts all that is kept even while the first segment is run again, when most
of it is gone. So it says nothing about the true peak.

Complexity: the cheapest kept set for a limit on the longest segment takes O(n), by a shortest path with a sliding
window (O(n^2) in the paper, which builds the accessibility graph). The paper tries each of the O(n^2) numbers of bytes
that a segment can have as limit. Here the limits are searched best bound first and nearly all are never tried: what is
kept only grows as the limit falls, so limits a to b cannot give less than a + what is kept at b. O(n^3) at worst,
where the paper's way takes O(n^4).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..kernels import feng as kernel
from ..kernels.arrays import compressed_rows
from ..model.schedule import Schedule
from ..problem import Problem, register
from ..structure.division import Part, division_tree
from ..structure.forward import Dag, forward_dag
from ..structure.saved import runs_from_saved


class KeptSet(NamedTuple):
    """A kept set.

    vertices : without source and target.
    value : bytes of the objective.
    tried : how many limits the search has tried.
    """

    vertices: list[int]
    value: int
    tried: int


@register(
    "feng",
    graphs="any",
    objective="bytes kept + bytes of the longest segment, forward tensors only: no gradients, no time",
    optimal="for its objective, among the kept sets that follow the division tree",
    complexity="O(n^3) at worst",
    citation="Feng, Huang, Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs, CVPR 2021, "
    "arXiv:1808.00079",
)
def feng(problem: Problem) -> Iterator[Schedule]:
    """Single-level checkpointing of any graph, optimal by a static measure without gradients: one plan for every goal,
    at most one extra forward."""
    graph = problem.graph
    forward = forward_dag(graph)
    if forward is None:
        yield Schedule.baseline(graph, "feng")
        return
    kept = cheapest(forward.dag, problem.deadline)
    yield Schedule.from_runs(graph, runs_from_saved(graph, forward.saved(kept.vertices)), "feng")


def cheapest(dag: Dag, deadline: float | None = None) -> KeptSet:
    """The kept set of least objective among those that follow the division tree.

    deadline : `time.monotonic()` at which to give the best so far.
    """
    parts = division_tree(dag)
    kept = np.empty(len(dag.cost), np.bool_)
    tree = _tree(parts, dag)
    scratch = _scratch(tree)
    best = KeptSet([], parts[0].cost, 0)
    # Stretches of limits, a to b, that may hold a better one: the least value possible there, a, b, and the bytes that
    # are kept above b already. An edge cannot be divided, so no limit is below the largest one.
    least = max(p.cost for p in parts if not p.children)
    stretches = [(least, least, best.value - 1, 0)]
    tried = 0
    while stretches and (deadline is None or time.monotonic() < deadline):
        bound, a, b, above = heapq.heappop(stretches)
        if bound >= best.value:
            break
        limit = (a + min(b, best.value - above - 1)) // 2
        total, longest, following = map(int, kernel.cheapest_kept(limit, tree, scratch, kept))
        tried += 1
        if total + longest < best.value:
            best = KeptSet(np.flatnonzero(kept).tolist(), total + longest, 0)
        for low, high, held in ((a, longest - 1, total), (following, b, above)):
            if low <= high and low + held < best.value:
                heapq.heappush(stretches, (low + held, low, high, held))
    return best._replace(tried=tried)


def _tree(parts: list[Part], dag: Dag) -> kernel.Tree:
    """The division tree as the kernel takes it."""
    children, vertices = compressed_rows(p.children for p in parts), compressed_rows(p.vertices for p in parts)
    kind, cost = np.array([(p.kind, p.cost) for p in parts], np.int64).T.copy()
    return kernel.Tree(kind, cost, *children, *vertices, dag.cost, dag.inside)


def _scratch(tree: kernel.Tree) -> kernel.TreeScratch:
    n, m = len(tree.kind), len(tree.child_ids)
    total, path, sums, came, queue = (np.empty(size, np.int64) for size in (n, m, m, m, m + 1))
    return kernel.TreeScratch(total, path, sums, came, queue, np.empty(n, np.bool_))
