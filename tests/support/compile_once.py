"""One test process compiles a kernel while the others wait, and then read it from numba's cache on disk.

In a fresh clone two processes would spend more than a minute each on the same kernels.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

import rekindle.kernels

_locked: set[int] = set()  # by this process


def compile_once() -> None:
    """From now on this process takes a lock, between processes, around the compilation of each kernel.

    A kernel's lock is held while the kernels that it calls are compiled. No kernels call each other in a circle, so no two
    processes wait for each other.
    """
    folder = Path(rekindle.kernels.__file__).parent / "__pycache__"
    folder.mkdir(exist_ok=True)
    file = (folder / "compiling.lock").open("w")  # open for as long as the process lives: closing gives all locks back
    compile_alone = Dispatcher.compile

    def compile_locked(self: Any, signature: Any) -> Any:
        code = self.py_func.__code__
        name = f"{code.co_filename}:{code.co_firstlineno}"
        with global_compiler_lock, _lock(file, int(hashlib.sha256(name.encode()).hexdigest()[:15], 16)):
            return compile_alone(self, signature)

    Dispatcher.compile = compile_locked


@contextmanager
def _lock(file: TextIO, place: int) -> Iterator[None]:
    """One byte of the file, locked for this process."""
    if place in _locked:
        yield
        return
    fcntl.lockf(file, fcntl.LOCK_EX, 1, place)
    _locked.add(place)
    try:
        yield
    finally:
        _locked.discard(place)
        fcntl.lockf(file, fcntl.LOCK_UN, 1, place)
