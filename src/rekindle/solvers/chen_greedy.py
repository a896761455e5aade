"""Segments of about equal bytes.

Chen, Xu, Zhang, Guestrin, Training Deep Nets with Sublinear Memory Cost, 2016, arXiv:1604.06174, Alg. 3.

Problem: with a budget b, go along the chain and keep a tensor wherever what has been made since the last one kept
exceeds b. With x bytes kept and a largest segment of y, b is searched: from b = 0, the next is sqrt(x y), then a grid
around that.

Optimality: none. It counts all that is kept even when most of it is gone, no gradients and no costs. Other graphs are
taken as the chain of their splitting vertices. Every budget gives a candidate. The last segment, with which backward
begins, is kept; as published it is run again, for no less memory.

Complexity: O(n) for each budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..model.schedule import Schedule
from ..problem import Problem, register
from ..structure.chain import Chain, chain_of, segmented

BUDGETS = 9  # tried on the grid around the square root; the paper gives no number


class Segments(NamedTuple):
    """The stages whose inputs are kept, bytes kept, bytes of the largest segment."""

    cuts: tuple[int, ...]
    kept: int
    largest: int


@register(
    "chen-greedy",
    graphs="chain",
    objective="segments of about equal bytes, of a chain",
    complexity="O(n)",
    citation="Chen, Xu, Zhang, Guestrin, Training Deep Nets with Sublinear Memory Cost, 2016, arXiv:1604.06174",
)
def chen_greedy(problem: Problem) -> Iterator[Schedule]:
    """Segments of about equal bytes for a number of budgets; blind to gradients and costs."""
    chain = chain_of(problem.graph)
    if chain is None:
        yield Schedule.baseline(problem.graph, "chen-greedy")
        return
    for cuts in dict.fromkeys(s.cuts for s in searched(chain)):
        yield from chain.schedules(segmented(chain.turn, cuts), "chen-greedy")


def searched(chain: Chain) -> Iterator[Segments]:
    """The segments for each budget of the search."""
    first = greedy(chain, 0)
    yield first
    budget = math.sqrt(first.kept * first.largest)
    for b in np.geomspace(budget / math.sqrt(2), budget * math.sqrt(2), BUDGETS) if budget else ():
        yield greedy(chain, float(b))


def greedy(chain: Chain, budget: float) -> Segments:
    """The segments for one budget."""
    made = chain.saved - chain.passed_on
    made[:-1] += chain.lives.begun[1:]
    cuts, kept, largest, since = [], 0, 0, 0
    for stage in range(chain.turn):
        since += int(made[stage])
        if since > budget and stage + 1 < chain.turn:
            cuts.append(stage + 1)
            kept += int(chain.input[stage + 1])
            largest, since = max(largest, since), 0
    return Segments(tuple(cuts), kept, max(largest, since))
