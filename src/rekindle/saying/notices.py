"""Messages to users while they work: a line on stderr, or a warning.

Of a distributed run only the first process prints news; each process gives its own warnings.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings

from ..errors import RekindleWarning
from ..printed import shortened
from . import live_line
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
        live_line.erase()
        print(f"rekindle: {line}", file=sys.stderr, flush=True)


def warn(line: str) -> None:
    """Warn, at the user's line, that Rekindle does not do what the user asked."""
    with contextlib.suppress(OSError, ValueError):
        live_line.erase()
    warnings.warn(shortened(line), RekindleWarning, stacklevel=depth_of_user())
