"""Keep every sqrt(n)-th tensor of a chain.

Chen, Xu, Zhang, Guestrin, Training Deep Nets with Sublinear Memory Cost, 2016, arXiv:1604.06174, Alg. 1.

Problem: a chain of n tensors of equal size. With k equal segments, k tensors are kept and n / k more are held while
backward runs a segment again, k + n / k in all: least at k = sqrt(n). Other graphs are taken as the chain of their
splitting vertices, whatever lies between them.

Optimality: none beyond a uniform chain, where 2 sqrt(n) is the least sum of what is kept and a longest segment. It
looks at no sizes and no costs. The first schedule is the paper's, which runs every segment again; the second keeps the
last segment, with which backward begins, as PyTorch's `checkpoint_sequential` does.

Complexity: O(n + edges).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..schedule import Schedule
from ..structure.division import splitting_vertices
from ..structure.forward import end_of_forward, forward_dag
from ..structure.saved import runs_from_saved
from .base import Problem
from .registry import register


@register(
    "chen-sqrt",
    graphs="chain",
    objective="tensors kept + tensors in a segment, of a chain of equal ones",
    optimal="",
    complexity="O(n)",
    citation="Chen, Xu, Zhang, Guestrin, Training Deep Nets with Sublinear Memory Cost, 2016, arXiv:1604.06174",
)
def chen_sqrt(problem: Problem) -> Iterator[Schedule]:
    """About sqrt(n) segments of equal length between the splitting vertices; blind to sizes and costs."""
    graph = problem.graph
    forward = forward_dag(graph)
    if forward is None:
        yield Schedule.baseline(graph, "chen-sqrt")
        return
    chain = splitting_vertices(forward.dag)
    kept = equally_spaced(chain)
    saved = forward.saved(kept)
    yield Schedule.from_runs(graph, runs_from_saved(graph, saved), "chen-sqrt")
    begin = forward.ops[kept[-1]] + 1 if kept else 0
    last_segment = [v for op in graph.ops[begin : end_of_forward(graph)] for v in op.outputs]
    yield Schedule.from_runs(graph, runs_from_saved(graph, saved + last_segment), "chen-sqrt")


def equally_spaced(chain: list[int]) -> list[int]:
    """The members that divide a chain, first and last not among them, into about sqrt(n) segments."""
    n = len(chain) - 1
    k = max(1, round(math.sqrt(n)))
    return [chain[round(i * n / k)] for i in range(1, k)]
