"""Progress of long work on stderr: nothing for two seconds, then what is done now, since when, and the best plan so far.

`with telling(progress):` around a public function opens it; `announce(progress, line)` says what begins now, and lines told
meanwhile are its news. On a terminal one line is written over and erased at the end; elsewhere (a file, a notebook) a line
is printed for each kind of work, and again each time that the time so far has doubled. Functions that call one another share
one reporter.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..printed import printable
from . import notices

log = logging.getLogger("rekindle")
Tell = Callable[[str], None]
Progress = Tell | bool | None  # as users give it: a function, False for silence, None or True for stderr


@dataclass(frozen=True)
class ProgressSettings:
    """When something is printed. `quiet_s` is the product's promise; the others are guesses.

    quiet_s : seconds of work before anything is printed.
    live_s : seconds between two versions of the line on a terminal.
    line_s : seconds between two lines where stderr is no terminal.
    again : a line that differs from an earlier one in numbers alone waits until the work has taken so many times as long.
    """

    quiet_s: float = 2.0
    live_s: float = 0.25
    line_s: float = 5.0
    again: float = 2.0


SETTINGS = ProgressSettings()
END_MOST_S = 1.0  # that the end of the work waits for a stderr that does not take a line; a guess
# A line with this word has the best plan so far and a bound: it stays in view until the next such line or announcement.
VERDICT = "certified"
_NUMBERS = re.compile(r"[\d.,]+")


class _Reporter:
    """Prints the latest line now and then, from a thread of its own, until `close`."""

    def __init__(self, quiet_s: float) -> None:
        self._began, self._quiet_s = time.monotonic(), quiet_s
        self._latest, self._printed = "working", ""
        self._kinds: dict[str, float] = {}  # line without its numbers -> seconds after which it was printed last
        self._live = notices.live_line_possible()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rekindle-progress", daemon=True)
        self._thread.start()

    def announce(self, line: str) -> None:
        """Take note of the work that begins now; the thread prints it."""
        log.debug(line)
        self._latest = line

    def tell(self, line: str) -> None:
        """Take note of news."""
        log.debug(line)
        if VERDICT in line or VERDICT not in self._latest:
            self._latest = line

    def close(self) -> None:
        """Stop printing and erase the line."""
        self._closed.set()
        self._thread.join(END_MOST_S)
        _harmless(notices.erase_line)

    def _run(self) -> None:
        pause = SETTINGS.quiet_s if self._live else max(self._quiet_s, SETTINGS.quiet_s)
        while not self._closed.wait(pause):
            _harmless(self._print)
            pause = SETTINGS.live_s if self._live else SETTINGS.line_s

    def _print(self) -> None:
        line, seconds = self._latest, time.monotonic() - self._began
        kind, taken = _NUMBERS.sub("", line), f"{seconds:.0f} s"
        if self._live:
            notices.show_line(f"rekindle: {taken}, {line}")
        elif sys.stderr is not None and seconds >= SETTINGS.again * self._kinds.get(kind, 0.0):
            still = "still: " if line == self._printed else ""
            self._printed, self._kinds[kind] = line, seconds
            print(f"rekindle: {still}{printable(line)}, {taken}", file=sys.stderr, flush=True)


# The reporter of the work under way in this process, and how many functions share it.
_lock = threading.Lock()
_reporter: _Reporter | None = None
_sharing = 0


@contextmanager
def telling(progress: Progress, quiet_s: float = 0.0) -> Iterator[Tell]:
    """Report on the work inside, as `progress` says; gives the function that takes lines.

    progress : a function gets every line; None or True: stderr, if this process speaks for a distributed run; False: nobody.
    quiet_s : where stderr is no terminal, nothing is printed for at least so long.
    """
    if callable(progress) or progress is False or not notices.is_first_process():
        yield listener(progress) or _nobody
        return
    global _reporter, _sharing
    with _lock:
        _reporter = _reporter or _Reporter(quiet_s)
        _sharing += 1
    try:
        yield _reporter.tell
    finally:
        with _lock:
            _sharing -= 1
            ended, _reporter = (None, _reporter) if _sharing else (_reporter, None)
        if ended is not None:
            ended.close()


def listener(progress: Progress) -> Tell | None:
    """The function that takes lines of progress now: the user's, or the reporter's on stderr; None: nobody listens."""
    if callable(progress):
        return progress
    reporter = _reporter
    return None if progress is False or reporter is None else reporter.tell


def announce(progress: Progress, line: str) -> None:
    """Report what begins now to whoever listens."""
    reporter = _reporter
    if callable(progress):
        progress(line)
    elif progress is not False and reporter is not None:
        reporter.announce(line)


def _nobody(line: str) -> None:
    pass


def _harmless(write: Callable[[], None]) -> None:
    """Write, whatever becomes of it: a stderr that is closed, full or strange must not end a search."""
    with contextlib.suppress(Exception):
        write()


def _forget() -> None:
    """In a forked process, whose copy of the reporter has no thread."""
    global _lock, _reporter, _sharing
    _lock, _reporter, _sharing = threading.Lock(), None, 0
    notices.forget_line()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
