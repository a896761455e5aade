"""Lines that the user of a planned module reads once: warnings, and hints."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from ...saying import notices
from ...saying.sizes import format_bytes
from ..tensors.sharded import own_class

SHAPES_BEFORE_HINT = 4  # new ones; a last batch and one for validation are no habit. A guess
# Lines that differ only in the shapes of a batch or in numbers of bytes are the same warning.
_OF_ONE_CALL = re.compile(r"\[[\d, ]*\]|\d[\d.]* ([KMGT]i?)?B\b")


class WarnOnce:
    """Gives each warning once. A copy of a module has a shallow copy, in which all earlier warnings count as given."""

    def __init__(self) -> None:
        self._lines: frozenset[str] = frozenset()
        self._mute = False

    def warn(self, line: str, kind: str = "") -> str:
        """Warn, if no warning of this kind (default: no line like this one) was given before. Returns the kind."""
        kind = kind or _OF_ONE_CALL.sub("", line)
        if not self._mute and kind not in self._lines:
            self._lines |= {kind}
            notices.warn(line)
        return kind

    @contextlib.contextmanager
    def mute(self) -> Iterator[None]:
        """No warnings inside: a check calls the module in its own ways."""
        before, self._mute = self._mute, True
        try:
            yield
        finally:
            self._mute = before


class NewShapes:
    """The first shapes of one module for which plans were made in the middle of a run. A module's copy has a shallow copy."""

    def __init__(self) -> None:
        self._seen: frozenset[Any] = frozenset()

    def hint(self, shapes: Any) -> str:
        """Note that a plan was made for a call of these shapes.

        Returns a hint how to meet fewer shapes, at the call that brings the shape number `SHAPES_BEFORE_HINT`; else "".
        """
        if len(self._seen) == SHAPES_BEFORE_HINT:  # the hint was given
            return ""
        self._seen |= {shapes}
        if len(self._seen) < SHAPES_BEFORE_HINT:
            return ""
        return (
            f"{SHAPES_BEFORE_HINT} new shapes so far, and each is planned at its first call. To meet fewer of them: pad "
            "lengths to a multiple (of 64, say), drop the last batch, and plan the longest one first"
        )


def left_over(model: nn.Module, gradients: str, size_bytes: int) -> str:
    """The warning that a loop keeps gradients which its plan does not count.

    gradients : the option with which the plan was made. size_bytes : of all gradients.
    """
    return (
        f"{own_class(model).__name__} was called while parameters had gradients, and its plan was made with "
        f'gradients="{gradients}": such a step may take up to {format_bytes(size_bytes)} more than planned. Set gradients to '
        'None before each step (optimizer.zero_grad()), or plan with gradients="kept"'
    )
