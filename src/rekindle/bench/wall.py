"""Instrument: wall time of a step as a ratio to the plain step's, the two in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

ROUNDS = 5  # of one way and the other
STEPS = 3  # of each in a round, after one that warms up; the fastest counts


def wall_ratio(step: Callable[[], None], within: Callable[[], AbstractContextManager[object]]) -> float:
    """Seconds of `step` within the context over those outside of it: the median of several rounds, each of which times both,
    so that what slows the machine down meanwhile slows both."""
    ratios = []
    for _ in range(ROUNDS):
        plain = _fastest(step)
        with within():
            ratios.append(_fastest(step) / plain)
    return statistics.median(ratios)


def _fastest(step: Callable[[], None]) -> float:
    step()
    found = []
    for _ in range(STEPS):
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return min(found)
