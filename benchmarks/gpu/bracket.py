"""Finds the largest batch that works, to within a share of it, in few tries and within a time limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

TOLERANCE_SHARE = 0.04  # of the batch, to within which the search finds the largest


class OutOfTime(Exception):
    """The time is up before the search has its answer."""


def largest(works: Callable[[int], bool], guess: int, tolerance: float = TOLERANCE_SHARE, good: int = 0) -> int:
    """The largest batch for which `works` is true, to within that share of it; 0 if there is none.

    guess : where to begin; a near guess needs few tries.
    good : a batch that is known to work, or 0; no smaller one is tried.
    """
    at = max(1, guess, good + 1)
    bad, stride, worked = 0, max(1, at // 8), False
    while True:
        if works(at):
            good, worked = at, True
        else:
            bad = at
        if bad == 1 or (bad and bad - good <= max(1, tolerance * bad)):
            return good
        if not bad:
            at, stride = at + stride, 2 * stride
        elif worked:
            at = (good + bad) // 2
        else:  # the guess is probably near
            at, stride = max(1, (good + bad) // 2, bad - stride), 2 * stride


class Clock:
    """The time of one search.

    seconds : limit on its own tries, without its waits for other jobs. end : limit of `time.monotonic`, waits included.
    """

    def __init__(self, seconds: float, end: float = math.inf):
        self.seconds, self.end = seconds, end
        self.spent, self.slowest, self.waited = 0.0, 0.0, 0.0

    def timed(self, works: Callable[[int], bool]) -> Callable[[int], bool]:
        """`works`, but raises OutOfTime if one more try, as slow as the slowest so far, may not end in time."""

        def found(batch: int) -> bool:
            begin, waited = time.monotonic(), self.waited
            if self.spent + self.slowest > self.seconds or begin + self.slowest > self.end:
                raise OutOfTime
            answer = works(batch)
            took = time.monotonic() - begin - (self.waited - waited)
            self.spent, self.slowest = self.spent + took, max(self.slowest, took)
            return answer

        return found
