"""The lock that lets one thread at a time plan, while no other thread is inside a call of the module that is planned.

Planning changes the module, and parts of torch for the whole process, and puts both back. Calls of other modules go on in
other threads meanwhile: what is changed for the whole process acts for the planning thread alone, where that is possible.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ...saying import notices
from ...saying.progress import Progress
from ..private import backward_number, no_compiling

NAMED_AFTER_S = 2.0  # after it a waiting thread says for what it waits; the product's promise
PATIENCE_S = 30.0  # after it planning begins although another thread is in a call, which may wait for this one; a guess
POLL_S = 0.0005  # between two looks; a guess


class Lock:
    """`with LOCK.planning(…):` around all work of a public function, `with LOCK.capturing(model):` around capturing, and
    `with LOCK.call(model):` around a call of a planned module.

    doing : what the planning thread does, in words that follow "another thread that".
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._planner = self._captures = 0  # threads, or 0
        self.doing = ""
        self._busy: frozenset[int] = frozenset()  # ids of the modules and parameters that are planned
        self._inside: dict[int, list[nn.Module | None]] = {}  # thread -> the modules whose calls it is in

    @property
    def mine(self) -> bool:
        """Whether this thread is capturing."""
        return self._captures == threading.get_ident()

    @property
    def plans(self) -> bool:
        """Whether this thread is planning."""
        return self._planner == threading.get_ident()

    @contextmanager
    def planning(self, doing: str, model: Any = None, progress: Progress = None) -> Iterator[None]:
        """Inside, no other thread plans, and none begins a call of the model. Enters again in a thread that plans already."""
        me = threading.get_ident()
        calls = self._inside.pop(me, None)  # while it waits here, this thread holds up no other
        try:
            self._acquire(progress)
            before = self._planner, self.doing, self._busy
            try:
                self._planner, self.doing = me, self.doing if self.plans else doing
                self._busy |= _members(model)
                if self._busy != before[2]:
                    self._wait()
                yield
            finally:
                self._planner, self.doing, self._busy = before
                self._lock.release()
        finally:
            if calls:
                self._inside[me] = calls

    @contextmanager
    def capturing(self, model: nn.Module) -> Iterator[None]:
        """`planning`, and planned modules that this thread calls inside run plain. torch.compile waits in other threads."""
        with self.planning(f"captures {type(model).__name__}", model), no_compiling():
            before, self._captures = self._captures, threading.get_ident()
            try:
                yield
            finally:
                self._captures = before

    def call(self, model: nn.Module | None) -> _Call:
        """Around a call of the planned module: waits while another thread plans it, or a module that shares parts with it."""
        return _Call(self, model)

    def after_fork(self) -> None:
        """Forget the other threads: a forked process has none of them."""
        me = threading.get_ident()
        if not self.plans:
            self._lock, self._planner, self._captures, self._busy = threading.RLock(), 0, 0, frozenset()
        self._inside = {t: calls for t, calls in self._inside.items() if t == me}

    def _acquire(self, progress: Progress) -> None:
        if self._lock.acquire(timeout=NAMED_AFTER_S):
            return
        line = f"waiting for another thread that {self.doing or 'plans'}"
        progress(line) if callable(progress) else notices.say(line, aloud=progress is not False)
        self._lock.acquire()

    def _wait(self) -> None:
        """Wait until no other thread is in a call that concerns the plan, for `PATIENCE_S` at most."""
        until = time.monotonic() + PATIENCE_S
        while any(map(self._any_concerned, list(self._inside.values()))) and time.monotonic() < until:
            time.sleep(POLL_S)

    def _any_concerned(self, calls: list[nn.Module | None]) -> bool:
        """Whether one of the modules has a part or a parameter in common with those that are planned."""
        return any(id(m) in self._busy or not self._busy.isdisjoint(_members(m)) for m in list(calls))


def _members(model: Any) -> frozenset[int]:
    """Ids of a module's submodules and parameters. The calls of a module change parameters' gradients too."""
    if not isinstance(model, nn.Module):
        return frozenset()
    return frozenset(map(id, (*model.modules(), *model.parameters())))


class _Call:
    """Context manager around a call of a planned module."""

    __slots__ = ("_calls", "_lock", "_model")

    def __init__(self, lock: Lock, model: nn.Module | None):
        self._lock, self._model = lock, model

    def __enter__(self) -> None:
        lock, me = self._lock, threading.get_ident()
        self._calls = calls = lock._inside.setdefault(me, [])
        # Before looking whether it is planned; a planner says so before it looks at the calls.
        calls.append(self._model)
        if not lock._busy or lock._planner == me or backward_number() != -1:
            return  # a backward's thread may work for the planner, which waits for it
        if lock._any_concerned(calls[:-1]) or not lock._any_concerned(calls[-1:]):
            return  # nobody waits for a thread that is inside already, and which the planner waits for
        calls.pop()
        lock._acquire(None)
        calls.append(self._model)
        lock._lock.release()

    def __exit__(self, *_: object) -> None:
        self._calls.pop()
        if not self._calls:
            self._lock._inside.pop(threading.get_ident(), None)


LOCK = Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LOCK.after_fork)
