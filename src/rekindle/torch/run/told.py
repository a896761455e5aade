"""Warnings that are given once for a planned module."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator

from ... import notices

# Lines that differ in these alone are the same warning: the shapes of a batch, and numbers of bytes.
_OF_ONE_CALL = re.compile(r"\[[\d, ]*\]|\d[\d.]* ([KMGT]i?)?B\b")


class Told:
    """Remembers what was told."""

    def __init__(self) -> None:
        self._lines: set[str] = set()
        self._mute = False

    def tell(self, line: str, kind: str = "") -> None:
        """Warn, where nothing of this kind (default: such a line) was told before."""
        kind = kind or _OF_ONE_CALL.sub("", line)
        if not self._mute and kind not in self._lines:
            self._lines.add(kind)
            notices.warn(line)

    @contextlib.contextmanager
    def mute(self) -> Iterator[None]:
        """Meanwhile nothing is told: a check calls the module in ways of its own."""
        before, self._mute = self._mute, True
        try:
            yield
        finally:
            self._mute = before

    def copied(self) -> Told:
        """What was told of a module was told of its copies."""
        twin = copy.copy(self)
        twin._lines = set(self._lines)
        return twin
