"""Messages to users while they work: a line on stderr, or a warning.

Under torchrun only the first process prints news; each process gives its own warnings.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings

from . import live_line
from .errors import RekindleWarning
from .frames import depth_of_user

log = logging.getLogger("rekindle")


def is_first_process() -> bool:
    """Whether no other process of a distributed run speaks for this one."""
    return os.environ.get("RANK", "0") in ("", "0")


def say(line: str, aloud: bool = True) -> None:
    """One line of progress or news on stderr; it also goes to the logger "rekindle" at level INFO."""
    log.info(line)
    if aloud and is_first_process() and sys.stderr is not None:
        live_line.erase()
        print(f"rekindle: {line}", file=sys.stderr, flush=True)


def warn(line: str) -> None:
    """Warn, at the user's line, that Rekindle does not do what the user asked."""
    with contextlib.suppress(OSError, ValueError):
        live_line.erase()
    warnings.warn(line, RekindleWarning, stacklevel=depth_of_user())
