"""Instrument: wall time of a step as a ratio to the plain step's, measured in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass(frozen=True)
class WallSettings:
    """How often steps are timed. Both figures are guesses that gave stable ratios on the suite cpu.

    rounds : each round times the plain step and the other step; the result is the median over rounds.
    steps_per_round : steps timed of each kind in a round, after one step of warm-up; the fastest counts.
    """

    rounds: int = 5
    steps_per_round: int = 3


SETTINGS = WallSettings()


def wall_ratio(step: Callable[[], None], within: Callable[[], AbstractContextManager[object]]) -> float:
    """Seconds of `step` inside the context divided by its seconds outside.

    The median of several rounds. Each round times both, so that other load on the machine slows both.
    """
    ratios = []
    for _ in range(SETTINGS.rounds):
        plain = _fastest(step)
        with within():
            ratios.append(_fastest(step) / plain)
    return statistics.median(ratios)


def _fastest(step: Callable[[], None]) -> float:
    step()
    found = []
    for _ in range(SETTINGS.steps_per_round):
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return min(found)
