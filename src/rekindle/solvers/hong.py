"""The revised objective on a chain: what is kept ends where backward has used it.

Hong, Tsai, Wang, Liu, Wu, GPU Memory Usage Optimization for Backward Propagation in Deep Network Training, JPDC 2025,
arXiv:2502.12499, second problem.

Problem: of the tensors of a chain, choose those to keep, for the least peak M(0). With kept tensor i held, either what
comes behind the next kept tensor j is at work, M(j), or the segment between them, when all behind it is gone:

    M(n) = d_n,   M(i) = d_i + min over j > i of max(M(j), U(i, j)),
    U(i, j) = sum of d_k over i < k < j, + d_j (incoming gradient) + max of d_k over i <= k < j (a gradient being made).

On n equal tensors the peak is about sqrt(2 n) where the static objective gives 2 sqrt(n). Other graphs are taken as the
chain of their splitting vertices, with what backward reads of the ops between them added to U. The recurrence is stated
here as it follows from the problem and from what the authors' code fixes of it.

Optimality: for this objective, over all kept sets. It counts one gradient more than autograd holds, no workspace and no
time; `hong-exact` counts what is there.

Complexity: O(n); U grows with j and as i falls, so that a queue of candidates j changes at its ends only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..kernels import hong as kernel
from ..model.schedule import Schedule
from ..problem import Problem, register
from ..structure.chain import chain_of, segmented


@register(
    "hong",
    graphs="chain",
    objective="peak of a chain of tensors, each with a gradient as large; no workspace, no time",
    optimal="for its objective, on a chain",
    complexity="O(n)",
    citation="Hong, Tsai, Wang, Liu, Wu, GPU Memory Usage Optimization for Backward Propagation in Deep Network "
    "Training, JPDC 2025, arXiv:2502.12499",
)
def hong(problem: Problem) -> Iterator[Schedule]:
    """Single-level checkpointing of a chain by the peak, segments growing shorter towards the loss; one plan, whatever
    the goal."""
    chain = chain_of(problem.graph)
    if chain is None:
        yield Schedule.baseline(problem.graph, "hong")
        return
    n = chain.turn
    _, follow = kernel.revised(chain.input.copy(), chain.saved[:n] - chain.passed_on[:n])
    yield from chain.schedules(segmented(n, followed(follow)), "hong")


def followed(follow: np.ndarray) -> list[int]:
    """The positions met from position 0 by going from each to the one that follows it, without the end."""
    cuts: list[int] = []
    at = int(follow[0])
    while at < len(follow):
        cuts.append(at)
        at = int(follow[at])
    return cuts
