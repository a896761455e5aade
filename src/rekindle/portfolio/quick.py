"""Small schedules within a fraction of a second, for errors that name what is reachable.

`dtr` reaches the smallest peaks of the fast solvers, at a high cost. The others give cheaper schedules that take more memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..model.schedule import Schedule
from ..problem import Problem
from . import small
from .proposals import ASKED


@dataclass(frozen=True)
class QuickSettings:
    """Which solvers are asked, and for how long.

    solvers : in this order. Measured: together 0.2 s at most on graphs of 217, 343 and 566 ops.
    seconds_most : after which no further solver is asked; a guess that leaves room within a second.
    """

    solvers: tuple[str, ...] = ("dtr", "rotor", "hong-exact", "feng", "min-cut")
    seconds_most: float = 0.6


SETTINGS = QuickSettings()


def small_plans(problem: Problem) -> Iterator[Schedule]:
    """The least peaks that fast solvers reach, and a few cheaper schedules; on the smallest graphs the proven least."""
    yield Schedule.baseline(problem.graph, "auto")
    end = time.monotonic() + SETTINGS.seconds_most
    brief = replace(
        problem, limit=None, max_overhead=None, deadline=end if problem.deadline is None else min(end, problem.deadline)
    )
    yield from small.proven(brief)
    for name in SETTINGS.solvers:
        if brief.time_left <= 0:
            return
        yield from ASKED[name](replace(brief, whole=True))
