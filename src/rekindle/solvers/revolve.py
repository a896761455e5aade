"""Binomial checkpointing: the fewest forward steps on a uniform chain.

Griewank, Walther, Algorithm 799: revolve, ACM TOMS 2000, doi:10.1145/347837.347846.

Problem: a chain of l equal steps and room for c states, the first one included. Fewest forward steps to run backward
through all of it, where backward of a step needs the state before it and one more run of the step.

Optimality: for the number of steps on a uniform chain, among schedules that keep states only. It takes

    t(l, c) = min over j of j + t(l - j, c - 1) + t(j, c) = r l - C(c + r, r - 1)

steps beside the runs for backward, r being the least with C(c + r, c) >= l; no step is passed more than r times. On
other chains, and on graphs taken as the chain of stages between their splitting vertices, none: it looks at no sizes
and no costs. `rotor` does.

Complexity: O(l c log l) for the table of all numbers of states up to c. They are the candidates, whatever the goal, but for
those that pass a step more than `MOST_PASSES` times on average.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..kernels import revolve as kernel
from ..model.schedule import Schedule
from ..problem import Problem, register
from ..structure.chain import BACKWARD, FORGET, KEEP_ALL, KEEP_INPUT, Operation, chain_of
from .chen_recursive import recursive

# How many plans are proposed; guesses.
MOST_PASSES = 16  # a plan that passes a step more often, on average, is not proposed
CANDIDATES = 48  # numbers of states that are tried, about
LONG_STAGES = 512  # a chain of more stages is long: it is tried with room for every state, and with few states
LONG_STATES = 128  # the most states that a long chain is tried with, beside room for every state


@register(
    "revolve",
    graphs="chain",
    objective="forward steps with room for so many states, on a chain of equal steps",
    optimal="for its objective, on a uniform chain",
    complexity="O(n^2 log n)",
    citation="Griewank, Walther, Algorithm 799: revolve, ACM TOMS 2000, doi:10.1145/347837.347846",
)
def revolve(problem: Problem) -> Iterator[Schedule]:
    """Multi-level checkpointing of a chain of equal steps, for every number of states that may be kept."""
    chain = chain_of(problem.graph)
    if chain is None:
        yield Schedule.baseline(problem.graph, "revolve")
        return
    n = chain.turn
    most = n
    if n > LONG_STAGES:
        most = LONG_STATES
        yield from chain.schedules(recursive(0, n, n - 1, n), "revolve")  # room for every state
    steps, choice = kernel.fewest_steps(n, most, 1, 0)
    for slots in spread(most, CANDIDATES):
        if steps[n, slots] <= (MOST_PASSES + 1) * n or slots == most:
            yield from chain.schedules(operations(choice, slots, 1, 0), "revolve")
            if problem.time_left <= 0:
                return


def spread(most: int, count: int) -> list[int]:
    """About `count` numbers at most, falling from `most` to 1, ever closer together."""
    return sorted({round(x) for x in np.geomspace(1, most, count).tolist()}, reverse=True)


def operations(choice: np.ndarray, memory: int, state: int, internal: int) -> Iterator[Operation]:
    """The operations that the choices of `kernels.revolve.fewest_steps` mean, on a chain of as many stages and the turn."""
    turn = len(choice) - 1
    todo = [(0, turn, memory)]  # first stage, stages, memory; without stages: run that one backward
    while todo:
        begin, t, m = todo.pop()
        if t < 0:
            yield BACKWARD, begin
            continue
        if t == 0:
            continue
        y = int(choice[t, m])
        if y > 0:
            yield from _pass(begin, begin + y)
            todo += [(begin, y, m), (begin + y, t - y, m - state)]
            continue
        save = begin + (-y or t) - 1
        yield from _pass(begin, save)
        yield KEEP_ALL, save
        todo += [(begin, save - begin, m), (save, -1, 0), (save + 1, begin + t - save - 1, m - internal)]
        if save + 1 == turn:
            yield from ((KEEP_ALL, turn), (BACKWARD, turn))


def _pass(begin: int, end: int) -> Iterator[Operation]:
    return ((KEEP_INPUT if stage == begin else FORGET, stage) for stage in range(begin, end))
