"""The largest number for which something works, to within a share of it, in few calls and in the time there is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

TOLERANCE = 0.04  # of the batch, within which the largest is found


class OutOfTime(Exception):
    """The search ends before its answer is known."""


def largest(works: Callable[[int], bool], guess: int, tolerance: float = TOLERANCE, good: int = 0) -> int:
    """The largest batch for which `works`, to within that share of it; 0: none. Few calls where `guess` is near.

    good : one for which it is known to work, or 0; none below it is tried.
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
        else:  # the guess was near, more likely than not
            at, stride = max(1, (good + bad) // 2, bad - stride), 2 * stride


class Clock:
    """The seconds of one search.

    seconds : for its own tries, waiting for others left out. end : of `time.monotonic`, with all waiting.
    """

    def __init__(self, seconds: float, end: float = math.inf):
        self.seconds, self.end = seconds, end
        self.spent, self.slowest, self.waited = 0.0, 0.0, 0.0

    def timed(self, works: Callable[[int], bool]) -> Callable[[int], bool]:
        """`works`, until one more try, as slow as the slowest so far, may take longer than there is: then OutOfTime."""

        def found(batch: int) -> bool:
            begin, waited = time.monotonic(), self.waited
            if self.spent + self.slowest > self.seconds or begin + self.slowest > self.end:
                raise OutOfTime
            answer = works(batch)
            took = time.monotonic() - begin - (self.waited - waited)
            self.spent, self.slowest = self.spent + took, max(self.slowest, took)
            return answer

        return found
