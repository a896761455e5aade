"""Instrument: wall time of a step as a ratio to the plain step's, measured in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

# Both figures are guesses that gave stable ratios on the suite cpu.
ROUNDS = 5  # each times the plain step and the other step; the result is the median over rounds
STEPS_PER_ROUND = 3  # of each kind, after one step of warm-up; the fastest counts


def wall_ratio(step: Callable[[], None], within: Callable[[], AbstractContextManager[object]]) -> float:
    """Seconds of `step` inside the context divided by its seconds outside.

    The median of several rounds. Each round times both, so that other load on the machine slows both.
    """
    ratios = []
    for _ in range(ROUNDS):
        plain = _fastest(step)
        with within():
            ratios.append(_fastest(step) / plain)
    return statistics.median(ratios)


def _fastest(step: Callable[[], None]) -> float:
    step()
    found = []
    for _ in range(STEPS_PER_ROUND):
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return min(found)
