"""The static objective on a chain, by accessibility graphs.

Feng, Huang, Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs, CVPR 2021, arXiv:1808.00079, the
algorithm for linear computation graphs.

Problem: of the tensors of a chain, choose those to keep, so that what is kept and the longest segment between kept ones
take the fewest bytes together. With a limit on the longest segment that is a shortest path, in the accessibility graph
of the tensors that one segment can join. Other graphs are taken as the chain of their splitting vertices, with what
backward reads of the ops between them; `feng` opens these parts too.

Optimality: for this objective, over all kept sets of the chain. It counts no gradients, no workspace and no time, and
all that is kept even when most of it is gone. The first schedule runs every segment again, as published; the second
keeps the last one, with which backward begins.

Complexity: O(n^4) as published; O(n^3) at worst here, by the search over limits of `feng`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..model.schedule import Schedule
from ..problem import Problem, register
from ..structure.chain import Chain, chain_of, segmented
from ..structure.forward import Dag
from .feng import cheapest


@register(
    "feng-linear",
    graphs="chain",
    objective="bytes kept + bytes of the longest segment of a chain: no gradients, no time",
    optimal="for its objective, on a chain",
    complexity="O(n^3) at worst",
    citation="Feng, Huang, Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs, CVPR 2021, "
    "arXiv:1808.00079",
)
def feng_linear(problem: Problem) -> Iterator[Schedule]:
    """Saves the set of a chain that is optimal by a static measure without gradients; one plan for every goal."""
    chain = chain_of(problem.graph)
    if chain is None:
        yield Schedule.baseline(problem.graph, "feng-linear")
        return
    cuts = cheapest(linear_dag(chain), problem.deadline).vertices
    yield from chain.schedules(segmented(chain.turn, cuts, last_again=True), "feng-linear")
    yield from chain.schedules(segmented(chain.turn, cuts), "feng-linear")


def linear_dag(chain: Chain) -> Dag:
    """One vertex per input of a stage, the turn's is the last; one edge per stage."""
    n = chain.turn
    inside = np.concatenate([[0], chain.passed_on[:n]])
    tail = np.arange(n, dtype=np.int64)
    return Dag(chain.input.copy(), inside, tail, tail + 1, chain.saved[:n] - chain.passed_on[:n])
