"""Answers Ctrl-C on the command line while the program is still being imported, which takes a second or more.

This module is imported first, so it imports little itself. Once `cli.main` runs, that function answers Ctrl-C.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

MESSAGE = "interrupted before it was done"
FAILED = 1


def document(message: str = MESSAGE) -> str:
    """The document that --json prints after an interruption."""
    return json.dumps({"error": {"type": "Interrupted", "message": message}})


def is_command_line(argv: Sequence[str]) -> bool:
    """Whether an interpreter that was started with these arguments runs `rekindle`, and not a program that imports it."""
    rest = list(argv[1:])
    while rest:
        arg = rest.pop(0)
        if arg == "-m":
            return rest[:1] == ["rekindle"]
        if arg == "-c":
            return False
        if arg in ("-X", "-W"):
            del rest[:1]
        elif not arg.startswith("-"):
            return os.path.basename(arg) in ("rekindle", "rekindle.exe", "rekindle-script.py")
    return False


def watch() -> None:
    """If this process is the command line, Ctrl-C ends it from now on with one line, one document and exit code 1."""
    if not is_command_line(getattr(sys, "orig_argv", ())):
        return
    # A shell starts background jobs with the signal ignored; outside the main thread no handler can be set.
    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _end)


def _end(signum: int, frame: Any) -> None:
    """End the process at once: after an import that was cut off, nothing could go on."""
    end_now(1 if "--json" in sys.argv[1:] else None)


def end_now(out: int | None) -> None:
    """Print one line on stderr and one document on the descriptor `out` (None: no document), and end the process."""
    for fd, text in ((2, f"error: {MESSAGE}"), (out, document())):
        if fd is not None:
            with contextlib.suppress(OSError):
                os.write(fd, text.encode() + b"\n")
    os._exit(FAILED)


watch()
