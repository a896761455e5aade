"""How the searches of `auto` run: in two threads, in rounds that cool and slices that see time run out, with lines of news."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from .. import bounds
from ..problem import Problem, choose
from ..sizes import format_bytes
from ..structure.archive import Entry

T = TypeVar("T")
THREADS_MOST = 2
# Annealing over modes (`storages`) and over sequences (`anneal`); guesses.
ANCHORS, CLOSER_ANCHORS = (
    12,
    6,
)  # peaks at which the chains of a sweep aim, and those of a closer look at a part of the curve
BINS = 256  # ranges of peaks that an archive tells apart
SLICES = 8  # parts of a chain, between which it sees that time is up,
LEAST_STEPS = 64  # of so many changes or proposals at least


def in_threads(problem: Problem, work: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> Iterator[T]:
    """Call `work` for each row of arguments, two at a time, and yield the results in order.

    An interruption does not end the waiting: the work under way sees `problem.time_left` run out and returns what it has.
    """
    with ThreadPoolExecutor(min(THREADS_MOST, os.cpu_count() or 1)) as pool:
        waiting = [pool.submit(work, *row) for row in arguments]
        for one in waiting:
            while True:
                with problem.interruptible():
                    result = one.result()
                    break
            yield result


@dataclass(frozen=True)
class Round:
    """One round of annealing chains.

    work_share : of the work of a whole sweep.
    heat : first temperature, in units of the plain step's cost.
    """

    work_share: float
    heat: float


def slices(problem: Problem, steps: int, heat: float) -> Iterator[tuple[int, int, float]]:
    """Number, steps and first temperature of each slice of a chain of so many steps, while time is left."""
    for k in range(SLICES):
        if problem.time_left <= 0:
            return
        yield k, max(LEAST_STEPS, steps // SLICES), heat * (1 - k / SLICES) ** 2


def tell(problem: Problem, found: list[Entry]) -> None:
    """Report the best entry found so far, and how far it is from what is certified, in one line."""
    g, w, once = problem.graph, problem.weights, problem.base_cost or 1.0
    best = choose(problem, found)[0]
    peak = best.peak + g.resident_bytes
    with problem.interruptible():
        if problem.limit is not None and peak <= problem.limit:
            certified = f"no plan within the budget below +{bounds.extras_at(g, w, [problem.limit])[0] / once:.2%}"
        else:
            overhead = problem.max_overhead
            least = bounds.single_op(g).bytes if overhead is None else bounds.at_overhead(g, w, overhead).bytes
            certified = f"none below {format_bytes(least)}, gap {1 - least / max(1, peak):.1%}"
        problem.progress(f"auto: {format_bytes(peak)} at +{best.extra / once:.2%}; certified: {certified}")
