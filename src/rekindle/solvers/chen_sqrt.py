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

from ..model.schedule import Schedule
from ..problem import Problem, register
from ..structure.chain import chain_of, segmented


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
    chain = chain_of(problem.graph)
    if chain is None:
        yield Schedule.baseline(problem.graph, "chen-sqrt")
        return
    cuts = equally_spaced(list(range(chain.turn + 1)))
    yield from chain.schedules(segmented(chain.turn, cuts, last_again=True), "chen-sqrt")
    yield from chain.schedules(segmented(chain.turn, cuts), "chen-sqrt")


def equally_spaced(chain: list[int]) -> list[int]:
    """The members that divide a chain, first and last not among them, into about sqrt(n) segments."""
    n = len(chain) - 1
    k = max(1, round(math.sqrt(n)))
    return [chain[round(i * n / k)] for i in range(1, k)]
