"""The single-level plan of least peak on a chain, as autograd runs it.

The revised objective of Hong, Tsai, Wang, Liu, Wu, GPU Memory Usage Optimization for Backward Propagation in Deep
Network Training, JPDC 2025, arXiv:2502.12499, with what a step really holds in the place of its U.

Problem: choose the stages of a chain whose inputs are kept, for the least peak of the whole step. While segment (i, j)
is at work, either forward passes it, or it is run again behind the gradient that waits, and its backward follows. Each
stage counts with what backward reads of it, with workspace and temporaries, with ops that write in place, and with the
gradients that are there. Inputs that share values (concatenations) count these once. Other graphs are taken as the
chain of stages between their splitting vertices.

Optimality: for the peak, among plans that keep inputs of stages and run each segment but the last again once, whole. On
a chain of single ops, each of which needs its input and its gradient, that is the judge's peak. Time does not count:
at most one forward more.

Complexity: O(n^2). The O(n) of `hong` needs a U that grows with j. This one need not: while a segment runs forward
again, its own gradient waits beside the workspace, and that of a longer segment may be smaller.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..kernels import hong as kernel
from ..schedule import Schedule
from ..structure.chain import Chain, chain_of, segmented
from .base import Problem
from .hong import followed
from .registry import register


@register(
    "hong-exact",
    graphs="chain",
    objective="the peak itself, of keeping inputs of stages and running each segment again once",
    optimal="for the peak among single-level plans, on a chain",
    complexity="O(n^2)",
    citation="after Hong, Tsai, Wang, Liu, Wu, GPU Memory Usage Optimization for Backward Propagation in Deep Network "
    "Training, JPDC 2025, arXiv:2502.12499",
)
def hong_exact(problem: Problem) -> Iterator[Schedule]:
    """Single-level checkpointing of a chain for the least peak; one plan, whatever the goal."""
    chain = chain_of(problem.graph)
    if chain is None:
        yield Schedule.baseline(problem.graph, "hong-exact")
        return
    _, cuts = least_peak(chain)
    yield chain.lower(segmented(chain.turn, cuts), "hong-exact")


def least_peak(chain: Chain) -> tuple[int, list[int]]:
    """The peak, without what is resident, and the stages whose inputs are kept."""
    peak, follow = kernel.exact(
        chain.hold, chain.passing, chain.saved, chain.gradient, chain.save_peak, chain.alone_peak, chain.backward_peak
    )
    return chain.held + int(peak), followed(follow)
