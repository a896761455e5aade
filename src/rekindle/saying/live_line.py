"""The one line at the bottom of a terminal that is written over again and again while work goes on.

Whoever prints to stderr meanwhile calls `erase` first.
"""

from __future__ import annotations

import os
import sys
import threading

from ..printed import printable

FEWEST_COLUMNS, USUAL_COLUMNS = 20, 80  # a terminal that says it has fewer is taken for a usual one
_lock = threading.RLock()
_shown = 0  # letters of the line that stands on the terminal now


def possible() -> bool:
    """Whether stderr is a terminal that can write over a line."""
    try:
        return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except (OSError, ValueError):  # closed
        return False


def show(text: str) -> None:
    """Write `text` over the line, cut to the width of the terminal. The cursor goes back to the line's beginning, so that
    others write over it.

    Raises
    ------
    OSError, ValueError : stderr cannot be written to.
    """
    global _shown
    line = printable(text)
    with _lock:
        most = _columns() - 1
        if len(line) > most:
            line = line[: most - 1] + "…"
        _write("\r" + line + " " * (_shown - len(line)) + "\r")
        _shown = len(line)


def erase() -> None:
    """Leave the terminal as it was before the line; does nothing where no line stands there.

    Raises
    ------
    OSError, ValueError : stderr cannot be written to.
    """
    global _shown
    with _lock:
        if _shown:
            width, _shown = _shown, 0
            _write("\r" + " " * width + "\r")


def forget() -> None:
    """In a forked process: no line stands on the terminal, and nobody holds the lock."""
    global _lock, _shown
    _lock, _shown = threading.RLock(), 0


def _write(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()


def _columns() -> int:
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = 0
    return columns if columns >= FEWEST_COLUMNS else USUAL_COLUMNS
