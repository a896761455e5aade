"""Ctrl-C while a command runs. `interrupt` handles it before that, while the program is being imported."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .. import interrupt
from ..saying import notices
from .answer import document_fd

GRACE_S = 5.0  # that compiled code has to return before the process is ended; a guess
_pressed: list[float] = []  # `time.monotonic()` of each Ctrl-C that Python has seen since the command began


def pressed() -> bool:
    """Whether Ctrl-C was pressed since the command began."""
    return bool(_pressed)


@contextmanager
def raising() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, and remember that it did."""
    _pressed.clear()

    def press(signum: int, frame: Any) -> None:
        _pressed.append(time.monotonic())
        raise KeyboardInterrupt

    before: Any = None
    # A shell starts background jobs with the signal ignored. Outside the main thread no handler can be set.
    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
            before = signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def watch(document: bool) -> None:
    """Start a thread that ends the process where Python cannot answer Ctrl-C, because compiled code does not return.

    document : whether the process prints a JSON document when it ends.
    The system's signal handler writes a byte into a pipe at once; Python's handler runs when the compiled code returns.
    """
    end, start = os.pipe()
    os.set_blocking(start, False)
    try:
        signal.set_wakeup_fd(start, warn_on_full_buffer=False)
    except ValueError:  # not the main thread
        return

    def wait() -> None:
        while number := os.read(end, 1):
            at = time.monotonic()
            if number[0] != signal.SIGINT:
                continue
            time.sleep(GRACE_S)
            if not _pressed or _pressed[-1] < at - GRACE_S:
                with contextlib.suppress(OSError, ValueError):
                    notices.erase_line()
                interrupt.end_now(document_fd() if document else None)

    threading.Thread(target=wait, name="rekindle-ctrl-c", daemon=True).start()
    # A child process must not wake the parent's thread.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_unwatch)


def _unwatch() -> None:
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)


def stop_handling() -> None:
    """Give Ctrl-C its usual meaning back: it ends the process."""
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
