"""The static objective on a chain, limit by limit.

Hong, Tsai, Wang, Liu, Wu, GPU Memory Usage Optimization for Backward Propagation in Deep Network Training, JPDC 2025,
arXiv:2502.12499, first problem.

Problem: of the tensors of a chain, choose those to keep, so that what is kept and the longest segment between kept ones
take the fewest bytes together. Other graphs are taken as the chain of their splitting vertices, with what backward
reads of the ops between them; each segment is run again once.

Optimality: for this objective, over all kept sets. It counts no gradients, no workspace and no time, and all that is
kept even when most of it is gone. The first schedule runs every segment again, as published; the second keeps the last
one, with which backward begins, for no more memory.

Complexity: O(n^3); each of the O(n^2) numbers of bytes that a segment can have takes O(n), by a monotone queue.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..kernels import hong as kernel
from ..model.schedule import Schedule
from ..problem import Problem, register
from ..structure.chain import Chain, chain_of, segmented


@register(
    "hong-cubic",
    graphs="chain",
    objective="bytes kept + bytes of the longest segment of a chain: no gradients, no time",
    optimal="for its objective, on a chain",
    complexity="O(n^3)",
    citation="Hong, Tsai, Wang, Liu, Wu, GPU Memory Usage Optimization for Backward Propagation in Deep Network "
    "Training, JPDC 2025, arXiv:2502.12499",
)
def hong_cubic(problem: Problem) -> Iterator[Schedule]:
    """Saves the set of a chain that is optimal by a static measure without gradients; one plan for every goal."""
    chain = chain_of(problem.graph)
    if chain is None:
        yield Schedule.baseline(problem.graph, "hong-cubic")
        return
    cuts = static_optimum(chain)
    yield from chain.schedules(segmented(chain.turn, cuts, last_again=True), "hong-cubic")
    yield from chain.schedules(segmented(chain.turn, cuts), "hong-cubic")


def static_optimum(chain: Chain) -> list[int]:
    """The stages whose inputs are kept."""
    _, kept = kernel.static(*static_sizes(chain))
    return np.flatnonzero(kept).tolist()


def static_sizes(chain: Chain) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """cost, begin, end of `kernels.hong.static`; positions are the inputs of stages, the last is the turn's."""
    saved, passed_on = chain.saved[: chain.turn], chain.passed_on[: chain.turn]
    begin = np.concatenate([[0], np.cumsum(saved)])
    end = begin.copy()
    end[1:] -= passed_on
    return chain.input.copy(), begin, end
