"""How the searches of `auto` run: in two threads, in rounds that cool and slices that see time run out, with lines of news."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from .. import bounds
from ..problem import Problem, choose
from ..saying.sizes import format_bytes
from ..structure.archive import Entry

T = TypeVar("T")
THREADS_MOST = 2
# Annealing over modes (`storages`) and over sequences (`anneal`); guesses.
ANCHORS = 12  # peaks at which the chains of a sweep aim
CLOSER_ANCHORS = 6  # peaks at which the chains of a closer look at a part of the curve aim
BINS = 256  # ranges of peaks that an archive tells apart
SLICES = 8  # parts of a chain, between which it sees that time is up,
LEAST_STEPS = 64  # of so many changes or proposals at least


def in_threads(problem: Problem, work: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> Iterator[T]:
    """Call `work` for each row of arguments, two at a time, and yield the results in order. Threads serve, since compiled loops
    run without Python's lock.

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


def teller(problem: Problem) -> Callable[[list[Entry]], None]:
    """A function that reports the best of the entries found so far, and how far it is from what is certified, in one line."""
    g, w, once = problem.graph, problem.weights, problem.base_cost or 1.0
    least_extra, least_peak = 0.0, 0
    with problem.interruptible():
        if problem.limit is not None:
            least_extra = bounds.extras_at(g, w, [problem.limit])[0]
        overhead = problem.max_overhead
        least_peak = bounds.single_op(g).bytes if overhead is None else bounds.at_overhead(g, w, overhead).bytes

    def tell(found: list[Entry]) -> None:
        best = choose(problem, found)[0]
        peak = g.with_resident(best.peak)
        certified = f"none below {format_bytes(least_peak)}, gap {1 - least_peak / max(1, peak):.1%}"
        if problem.limit is not None and peak <= problem.limit:
            certified = f"no plan within the budget below +{least_extra / once:.2%}"
        problem.progress(f"auto: {format_bytes(peak)} at +{best.extra / once:.2%}; certified: {certified}")

    return tell
