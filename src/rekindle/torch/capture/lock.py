"""The lock that lets one thread at a time capture, while no other thread is inside a planned module.

Capturing a call changes the module, and parts of torch for the whole process, and puts both back.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from types import TracebackType

from .private import backward_number


@dataclass(frozen=True)
class LockSettings:
    """Waiting for other threads. Both are guesses.

    patience_s : after it capturing begins although another thread is in a call, which may be waiting for this thread.
    poll_s : seconds between two looks.
    """

    patience_s: float = 30.0
    poll_s: float = 0.0005


SETTINGS = LockSettings()


class Lock:
    """`with LOCK:` around capturing, and `with LOCK.calls:` around a call of a planned module."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner = 0
        self._depth = 0
        self._inside: dict[int, int] = {}  # thread -> number of nested calls that it is in
        self._paused: list[int] = []  # numbers of calls that the owner was in when it began to capture
        self.calls = _Calls(self)

    @property
    def mine(self) -> bool:
        """Whether this thread is capturing."""
        return self._owner == threading.get_ident()

    def __enter__(self) -> None:
        me = threading.get_ident()
        calls = self._inside.pop(me, 0)  # while it waits here, this thread holds up no other
        try:
            self._lock.acquire()
        except BaseException:
            self._inside[me] = calls
            raise
        self._owner = me
        self._depth += 1
        self._paused.append(calls)
        if self._depth == 1:
            try:
                self._wait()
            except BaseException:
                self.__exit__()
                raise

    def __exit__(self, *_: object) -> None:
        me, calls = threading.get_ident(), self._paused.pop()
        self._depth -= 1
        if calls:
            self._inside[me] = calls
        if not self._depth:
            self._owner = 0
        self._lock.release()

    def after_fork(self) -> None:
        """Forget the other threads: a forked process has none of them."""
        me = threading.get_ident()
        if not self.mine:
            self._lock, self._owner, self._depth, self._paused = threading.RLock(), 0, 0, []
        self._inside = {t: n for t, n in self._inside.items() if t == me}

    def _wait(self) -> None:
        """Wait until no other thread is in a call, for `LockSettings.patience_s` at most."""
        until = time.monotonic() + SETTINGS.patience_s
        while self._inside and time.monotonic() < until:
            time.sleep(SETTINGS.poll_s)


class _Calls:
    """Context manager around a call of a planned module: waits while another thread captures."""

    def __init__(self, lock: Lock):
        self._of = lock

    def __enter__(self) -> None:
        lock, me = self._of, threading.get_ident()
        calls = lock._inside.get(me, 0)
        lock._inside[me] = calls + 1  # set before reading the owner; a new owner reads `_inside` after it became owner
        if calls or not lock._owner or lock._owner == me or backward_number() != -1:
            return  # a backward's thread may work for the owner, who waits for it
        del lock._inside[me]
        with lock._lock:
            lock._inside[me] = 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        lock, me = self._of, threading.get_ident()
        calls = lock._inside.get(me, 0)
        if calls > 1:
            lock._inside[me] = calls - 1
        else:
            lock._inside.pop(me, None)


LOCK = Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LOCK.after_fork)
