"""Messages to users while they work: a line on stderr, a warning, or the live line at the bottom of a terminal.

Of a distributed run only the first process prints news; each process gives its own warnings. The live line is written over
again and again while work goes on: whoever prints to stderr meanwhile calls `erase_line` first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import warnings

from ..errors import RekindleWarning
from ..printed import printable, shortened
from .frames import depth_of_user

log = logging.getLogger("rekindle")
RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK")  # torchrun sets the first; Lightning's own launcher sets the others alone


def is_first_process() -> bool:
    """Whether no other process of a distributed run speaks for this one."""
    if any(os.environ.get(k, "0") not in ("", "0") for k in RANKS):
        return False
    distributed = sys.modules.get("torch.distributed")  # spawned processes know their rank from the process group alone
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return True
    return bool(distributed.get_rank() == 0)


def say(line: str, aloud: bool = True) -> None:
    """One line of progress or news on stderr; it also goes to the logger "rekindle" at level INFO."""
    line = shortened(line)
    log.info(line)
    if aloud and is_first_process() and sys.stderr is not None:
        erase_line()
        print(f"rekindle: {line}", file=sys.stderr, flush=True)


def warn(line: str) -> None:
    """Warn, at the user's line, that Rekindle does not do what the user asked."""
    with contextlib.suppress(OSError, ValueError):
        erase_line()
    warnings.warn(shortened(line), RekindleWarning, stacklevel=depth_of_user())


FEWEST_COLUMNS, USUAL_COLUMNS = 20, 80  # a terminal that says it has fewer is taken for a usual one
_lock = threading.RLock()
_shown = 0  # letters of the line that stands on the terminal now


def live_line_possible() -> bool:
    """Whether stderr is a terminal on which a program can replace a line that it has written."""
    try:
        return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except (OSError, ValueError):  # closed
        return False


def show_line(text: str) -> None:
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


def erase_line() -> None:
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


def forget_line() -> None:
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
