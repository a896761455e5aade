"""Warnings that are given once for a planned module."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator

from ... import notices

# Lines that differ only in the shapes of a batch or in numbers of bytes are the same warning.
_OF_ONE_CALL = re.compile(r"\[[\d, ]*\]|\d[\d.]* ([KMGT]i?)?B\b")


class WarnOnce:
    """Gives warnings and remembers them."""

    def __init__(self) -> None:
        self._lines: set[str] = set()
        self._mute = False

    def warn(self, line: str, kind: str = "") -> None:
        """Warn, if no warning of this kind (default: no line like this one) was given before."""
        kind = kind or _OF_ONE_CALL.sub("", line)
        if not self._mute and kind not in self._lines:
            self._lines.add(kind)
            notices.warn(line)

    @contextlib.contextmanager
    def mute(self) -> Iterator[None]:
        """No warnings inside: a check calls the module in its own ways."""
        before, self._mute = self._mute, True
        try:
            yield
        finally:
            self._mute = before

    def copied(self) -> WarnOnce:
        """For a copy of the module: warnings about a module count as given for its copies."""
        twin = copy.copy(self)
        twin._lines = set(self._lines)
        return twin
