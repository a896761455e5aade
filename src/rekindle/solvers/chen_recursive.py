"""Recursive checkpointing: logarithmic memory.

Chen, Xu, Zhang, Guestrin, Training Deep Nets with Sublinear Memory Cost, 2016, arXiv:1604.06174, section 4.4: mirror
counts above one.

Problem: a chain of n tensors of equal size. Keep k of them, equally spaced; treat each of the k + 1 segments in the
same way when backward reaches it. Memory is g(n) = k + g(n / (k + 1)) = k log n to the base k + 1: with k = 1, log2 n
for O(n log n) forward steps.

Optimality: none; it looks at no sizes and no costs. `revolve` takes the fewest steps on a uniform chain, `rotor` is
optimal on any. Other graphs are taken as the chain of stages between their splitting vertices. A number of k are the
candidates, whatever the goal.

Complexity: O(n log n) for each k, as many as the schedule has steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..model.schedule import Schedule
from ..problem import Problem, register
from ..structure.chain import BACKWARD, FORGET, KEEP_ALL, KEEP_INPUT, Operation, chain_of


@register(
    "chen-recursive",
    graphs="chain",
    objective="tensors kept at each level of a recursion, of a chain of equal ones",
    complexity="O(n log n)",
    citation="Chen, Xu, Zhang, Guestrin, Training Deep Nets with Sublinear Memory Cost, 2016, arXiv:1604.06174",
)
def chen_recursive(problem: Problem) -> Iterator[Schedule]:
    """Segments within segments, down to single stages; for very little memory."""
    chain = chain_of(problem.graph)
    if chain is None:
        yield Schedule.baseline(problem.graph, "chen-recursive")
        return
    for k in counts(chain.turn):
        yield from chain.schedules(recursive(0, chain.turn, k, chain.turn), "chen-recursive")


def counts(n: int) -> list[int]:
    """The numbers of tensors to keep at each level: small ones, and the numbers that give two, three and four equal levels."""
    levels = {math.ceil(n ** (1 / depth)) - 1 for depth in (1, 2, 3, 4)}
    return sorted({k for k in {1, 2, 3} | levels if 1 <= k < n} | {max(1, n - 1)})


def recursive(begin: int, end: int, k: int, turn: int) -> Iterator[Operation]:
    """The operations for stages `begin` to `end` - 1."""
    if end - begin == 1:
        yield KEEP_ALL, begin
        if end == turn:
            yield from ((KEEP_ALL, turn), (BACKWARD, turn))
        yield BACKWARD, begin
        return
    bounds = sorted({begin + round(i * (end - begin) / (k + 1)) for i in range(k + 2)})
    for stage in range(begin, bounds[-2]):
        yield (KEEP_INPUT if stage in bounds else FORGET), stage
    for a, b in zip(bounds[-2::-1], bounds[:0:-1], strict=True):
        yield from recursive(a, b, k, turn)
