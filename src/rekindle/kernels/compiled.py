"""How kernels are compiled: `entry` for functions that Python calls, `inner` for those that only kernels call.

For each function of `njit`, numba compiles wrappers for Python and for C, and a version for each literal argument. A function
that only kernels call is compiled without wrappers and versions, so that the first plan waits a fifth less for the compiler.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numba as nb
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import register_jitable

from ..saying import notices
from . import shared_work


def _remove(folder: str, process: int) -> None:
    """Remove the folder; does nothing in a fork."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _is_kept() -> bool:
    """Whether numba has a folder for what it compiles. If it has none (a read-only installation, without a home folder that can
    be written to), it would refuse every function, the user's too: then it gets a folder that goes with this process."""
    try:
        nb.njit(cache=True)(_is_kept)
        return True
    except RuntimeError:
        pass
    kept, where = True, "this process keeps them in a temporary folder"
    try:
        nb.config.CACHE_DIR = folder = tempfile.mkdtemp(prefix="rekindle-numba-")  # type: ignore[attr-defined]
        atexit.register(_remove, folder, os.getpid())
    except OSError:
        kept, where = False, "nothing keeps them"
    notices.say(
        f"numba finds no folder for compiled kernels that can be written to: {where}, and each process compiles the "
        "search anew, for up to half a minute. Name a folder in NUMBA_CACHE_DIR"
    )
    return kept


KEPT = _is_kept()
_compiled = nb.njit(cache=KEPT, nogil=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]
inner = register_jitable(cache=KEPT, no_cfunc_wrapper=True)  # called from Python it runs as plain Python, slowly


def entry(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls, when it is first called with arguments of a type.

    While a second process compiles as well (see `companion`), each kernel is compiled by the one that comes first to it.
    """
    kernel = _compiled(function)
    compile_here = kernel.compile

    def compile_once(signature: Any) -> Any:
        global _seconds
        _report(kernel)
        begin = time.thread_time()
        # The lock comes first: a thread must not hold a kernel back while it waits for another thread's compilation.
        shared = shared_work.going_on()
        with global_compiler_lock, shared_work.turn(shared_work.label(kernel, signature)) if shared else nullcontext():
            try:
                return compile_here(signature)
            finally:
                _seconds += time.thread_time() - begin

    kernel.compile = compile_once
    return kernel


def to_compile(kernel: Any) -> bool:
    """Whether an `entry` has yet to be compiled: this process has not, and the cache on disk holds nothing of it."""
    if kernel.signatures:
        return False
    if not KEPT:
        return True
    module = kernel.py_func.__module__.rpartition(".")[2]
    return not any(Path(kernel.stats.cache_path).glob(f"{module}.{kernel.py_func.__name__}-*.nbi"))


_seconds = 0.0


def seconds() -> float:
    """Processor time that this process has spent on compiling, and on reading what is compiled from disk."""
    return _seconds


_reporter: Callable[[str], None] | None = None


@contextmanager
def reported_to(report: Callable[[str], None]) -> Iterator[None]:
    """Call `report` with a line of text if a kernel is compiled within this context that is not on disk; at most once."""
    global _reporter
    before, _reporter = _reporter, report
    try:
        yield
    finally:
        _reporter = before


def _report(kernel: Any) -> None:
    global _reporter
    if _reporter is None or not to_compile(kernel):
        return
    report, _reporter = _reporter, None
    if report is not None:  # another thread may have reported while this one looked at the disk
        report("compiling the search, once after an installation: up to half a minute")
