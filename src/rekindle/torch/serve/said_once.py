"""Lines that the user of a planned module reads once: warnings, and hints."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any

from torch import nn

from ... import allowance
from ...saying import notices
from ...saying.sizes import format_bytes
from ..tensors.sharded import own_class

SHAPES_BEFORE_SUMMARY = 4  # new ones; a last batch and one for validation are no habit. A guess
FEWER_SHAPES = (
    "To meet fewer of them, pad lengths to a multiple (pad_to_multiple_of=64, say), drop the last batch, and plan the longest "
    "one first"
)
# Lines that differ only in the shapes of a batch or in numbers of bytes are the same warning.
_OF_ONE_CALL = re.compile(r"\[[\d, ]*\]|\d[\d.]* ([KMGT]i?)?B\b")


class WarnOnce:
    """Gives each warning once, and knows which lines were given. A copy of a module has a shallow copy, in which all earlier
    lines count as given."""

    def __init__(self) -> None:
        self._lines: frozenset[str] = frozenset()
        self._mute = False

    def warn(self, line: str, kind: str = "") -> str:
        """Warn, if no warning of this kind (default: no line like this one) was given before. Returns the kind."""
        kind = kind or _OF_ONE_CALL.sub("", line)
        if not self._mute and self.is_first(kind):
            notices.warn(line)
        return kind

    def is_first(self, kind: str) -> bool:
        """Whether no line of this kind, apart from shapes and bytes in it, was given before; from now on one was."""
        kind, before = _OF_ONE_CALL.sub("", kind), self._lines
        self._lines |= {kind}
        return kind not in before

    @contextlib.contextmanager
    def mute(self) -> Iterator[None]:
        """No warnings inside: a check calls the module in its own ways."""
        before, self._mute = self._mute, True
        try:
            yield
        finally:
            self._mute = before


class NewShapes:
    """The shapes of one module for which plans were made in the middle of a run, and the time that this took. The parts of a
    model have one in common. A module's copy has a shallow copy.

    first_s : seconds that the first plan took. seconds : that planning has taken since the first step.
    """

    def __init__(self, first_s: float = 0.0) -> None:
        self._seen: frozenset[Any] = frozenset()
        self._began: float | None = None  # when the first step began, in seconds of `time.perf_counter`
        self.first_s, self.seconds, self._worked = first_s, 0.0, 0.0

    def begin(self) -> None:
        """Note that a step begins; the first one counts."""
        if self._began is None:
            self._began = time.perf_counter()

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """The code inside plans."""
        start, worked = time.perf_counter(), allowance.worked()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start
            self._worked += allowance.worked() - worked

    def take_too_long(self, changed: str) -> str:
        """Why no plan is made now, as part of a message: planning has taken much of the run's time. "" if it has not.

        changed : what but the shapes is new, as part of that message. The least time is one of the processor, so that a busy
        machine makes the same plans."""
        now, most = time.perf_counter(), allowance.SETTINGS
        run = now - (self._began or now) + self.first_s
        if self._worked <= most.mid_run_least_s or self.seconds <= most.mid_run_share * run:
            return ""
        return (
            f"{changed}. Plans for new {'calls' if changed else 'shapes'} took {self.seconds:.1f} of the run's {run:.0f} s, "
            f"its first plan included; plans that can wait are made once that is less than {most.mid_run_share:.0%}"
            f"{'' if changed else f'. {FEWER_SHAPES}'}"
        )

    def news(self, shapes: Any, line: str) -> str:
        """Note a plan that was made for a call of these shapes. line : the sentence that announces it.

        Returns `line` for the first shape, a summary for shape number `SHAPES_BEFORE_SUMMARY`, and else "".
        """
        if shapes in self._seen or len(self._seen) == SHAPES_BEFORE_SUMMARY:
            return ""
        self._seen |= {shapes}
        if len(self._seen) == SHAPES_BEFORE_SUMMARY:
            return (
                f"{SHAPES_BEFORE_SUMMARY} new shapes so far, planned in {self.seconds:.1f} s; further ones are planned without "
                f"a word. {FEWER_SHAPES}"
            )
        return line if len(self._seen) == 1 else ""


def left_over(model: nn.Module, gradients: str, size_bytes: int) -> str:
    """The warning that a loop keeps gradients which its plan does not count.

    gradients : the option with which the plan was made. size_bytes : of all gradients.
    """
    return (
        f"{own_class(model).__name__} was called while parameters had gradients, and its plan was made with "
        f'gradients="{gradients}": such a step may take up to {format_bytes(size_bytes)} more than planned. Set gradients to '
        'None before each step (optimizer.zero_grad()), or plan with gradients="kept"'
    )
