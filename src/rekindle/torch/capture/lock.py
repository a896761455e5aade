"""Capturing a call changes the module, and much of torch for the whole process, and puts both back. So one thread at a time
captures, and no other is inside of a planned module meanwhile."""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType

import torch

# Seconds until capturing begins although another thread is in a call: that one may wait for this thread.
PATIENCE = 30.0
_POLL = 0.0005


class Lock:
    """`with LOCK:` capture; `with LOCK.calls:` call a planned module."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner = 0
        self._depth = 0
        self._inside: dict[int, int] = {}  # thread -> how many calls it is in, one inside of the other
        self._paused: list[int] = []  # of the owner, before it began to capture
        self.calls = _Calls(self)

    @property
    def mine(self) -> bool:
        """Whether this thread captures."""
        return self._owner == threading.get_ident()

    def __enter__(self) -> None:
        me = threading.get_ident()
        calls = self._inside.pop(me, 0)  # a thread that waits here is in nobody's way
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
        """In a new process there are no other threads."""
        me = threading.get_ident()
        if not self.mine:
            self._lock, self._owner, self._depth, self._paused = threading.RLock(), 0, 0, []
        self._inside = {t: n for t, n in self._inside.items() if t == me}

    def _wait(self) -> None:
        """Until no other thread is in a call."""
        until = time.monotonic() + PATIENCE
        while self._inside and time.monotonic() < until:
            time.sleep(_POLL)


class _Calls:
    """The calls of planned modules that threads are in."""

    def __init__(self, lock: Lock):
        self._of = lock

    def __enter__(self) -> None:
        lock, me = self._of, threading.get_ident()
        calls = lock._inside.get(me, 0)
        lock._inside[me] = calls + 1  # before the look at the owner, who looks here after becoming it
        if calls or not lock._owner or lock._owner == me or torch._C._current_graph_task_id() != -1:
            return  # a thread of a backward may work for the owner, who would wait for it
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
