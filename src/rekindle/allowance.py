"""The processor time that searches without a time limit may take: planning ends where it costs more than it can win.

All searches of one call of a public function share one allowance. It is counted in seconds of this process's processor time,
without those that compiling takes, so that a busy machine gives the same plans.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from .kernels import compiled
from .saying import notices
from .saying.progress import Progress


@dataclass(frozen=True)
class AllowanceSettings:
    """All are guesses.

    steps : plain steps of training; searches may take as long as they do,
    least_s, most_s : but at least, and at most, so many seconds.
    mid_run_share : of a run's time, its first plan included, planning for new calls may take in the middle of it,
    mid_run_least_s : but at least so many seconds.
    """

    steps: int = 1000
    least_s: float = 20.0
    most_s: float = 60.0
    mid_run_share: float = 0.1
    mid_run_least_s: float = 3.0


SETTINGS = AllowanceSettings()


class Allowance:
    """Seconds that searches may take from now on. whole : the allowance of which this one is a part; None: it is none.

    cut_after : seconds, of the clock and of the processor, after which a search ended last because its seconds were over;
        None: none did.
    """

    def __init__(self, seconds: float, whole: Allowance | None = None):
        self.seconds, self.whole = seconds, whole or self
        self.cut_after: tuple[float, float] | None = None
        self._began, self._end = (time.monotonic(), worked()), worked() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; a search that asks ends where there are none."""
        left = self._end - worked()
        if left <= 0:
            clock, processor = self.whole._began
            self.whole.cut_after = time.monotonic() - clock, worked() - processor
        return left

    def part(self, share: float) -> Allowance:
        """A share of what is left."""
        return Allowance(share * max(0.0, self._end - worked()), self.whole)


_open: ContextVar[list[Allowance] | None] = ContextVar("allowances", default=None)  # the last one counts now


@contextmanager
def shared(progress: Progress) -> Iterator[None]:
    """All searches inside share one allowance; one line tells where it ended one of them."""
    if _open.get() is not None:
        yield
        return
    made: list[Allowance] = []
    token = _open.set(made)
    try:
        yield
    finally:
        _open.reset(token)
        if made and made[0].cut_after is not None:
            clock, processor = made[0].cut_after
            notices.say(
                f"the search ended after {clock:.0f} s ({processor:.0f} s of processor time), since going on is likely to cost "
                'more than training can win; effort="thorough" or a time_limit searches longer',
                aloud=progress is not False,
            )


def of_step(seconds: float) -> Allowance:
    """The allowance that counts now; where there is none yet, a new one. seconds : of one plain step."""
    made = _open.get()
    if made:
        return made[-1]
    new = Allowance(min(max(SETTINGS.least_s, SETTINGS.steps * seconds), SETTINGS.most_s))
    if made is not None:
        made.append(new)
    return new


@contextmanager
def part(share: float) -> Iterator[None]:
    """Searches inside have this share of what is left of the allowance that counts now."""
    made = _open.get()
    if not made:
        yield
        return
    made.append(made[-1].part(share))
    try:
        yield
    finally:
        made.pop()


def worked() -> float:
    """Seconds of processor time that this process has worked, without those that compiling took."""
    return time.process_time() - compiled.seconds()
