"""A second process that compiles kernels while this one does other work: the first plan after an installation waits for less.

It imports no torch and nothing of the user's, writes to nowhere but numba's cache and a folder of its own, and ends when all
is compiled, or soon after the process that started it. While operators are timed it stands still. Where it cannot be started
or fails, kernels are compiled as they are called.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba as nb
from numba.core import event

from . import shared_work
from .compiled import KEPT, to_compile

END_MOST_S = 10.0  # for it to end when it is told to
NEEDS = ("rekindle", "numba", "llvmlite", "numpy", "scipy")  # packages that it imports

log = logging.getLogger("rekindle")


class _Companion:
    """The process, and the folder in which the two say who compiles which kernel."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]):
        self.folder, self.process, self.started_by = folder, process, os.getpid()

    def works(self) -> bool:
        return os.getpid() == self.started_by and self.process.poll() is None

    def end(self) -> None:
        """End the process, and remove the folder. Does nothing in a fork."""
        if os.getpid() != self.started_by:
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if self.process.poll() is None:
                self.process.terminate()
            self.process.wait(END_MOST_S)
        shutil.rmtree(self.folder, ignore_errors=True)


_companion: _Companion | None = None
_all_there = False  # whether the disk held every kernel when it was last asked


def start() -> None:
    """Compile in a second process the kernels that are not on disk yet; does nothing the second time."""
    global _companion, _all_there
    if _companion is not None or _all_there or not _useful():
        return
    _all_there = not remaining()
    if _all_there:
        return
    folder = Path(tempfile.mkdtemp(prefix="rekindle-kernels-"))
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(folder), str(os.getpid())],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_paths())} | _same_cache(), cwd=folder,
        )  # fmt: skip
    except OSError as e:
        log.debug("kernels are compiled in this process alone: %s", e)
        shutil.rmtree(folder, ignore_errors=True)
        return
    _companion = _Companion(folder, process)
    atexit.register(_companion.end)
    shared_work.begin(shared_work.Share(folder, _companion.works))


@contextmanager
def paused() -> Iterator[None]:
    """Let the second process stand still within this context, so that it does not disturb a measurement of time."""
    mark = None if _companion is None or not _companion.works() else _companion.folder / shared_work.PAUSE
    with contextlib.suppress(OSError):
        if mark is not None:
            mark.touch()
    try:
        yield
    finally:
        if mark is not None:
            mark.unlink(missing_ok=True)


def wait() -> None:
    """Wait until the second process has ended, if there is one."""
    if _companion is not None and _companion.works():
        _companion.process.wait()


def taken(kernel: Any, types: Any) -> bool:
    """Whether the second process compiles the kernel, or has done so."""
    if _companion is None:
        return False
    return (_companion.folder / shared_work.label(kernel, types)).exists()


def remaining() -> list[tuple[Any, Any]]:
    """(kernel, types of its arguments) of what a first plan needs and the disk does not hold."""
    from .signatures import KERNELS

    return [(kernel, types) for kernel, types in KERNELS if to_compile(kernel)]


def _same_cache() -> dict[str, str]:
    """The variable that names numba's folder, if numba was given one; `compiled` may have done so."""
    folder = nb.config.CACHE_DIR  # type: ignore[attr-defined]
    return {"NUMBA_CACHE_DIR": folder} if folder else {}


def _useful() -> bool:
    """Whether a second process can be started here and would help."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    helps_nobody = multiprocessing.parent_process() is not None or "PYTEST_XDIST_WORKER" in os.environ
    first_rank = os.environ.get("LOCAL_RANK", "0") == "0"
    # Another program that Python is built into would start itself anew.
    is_python = Path(sys.executable or "").name.startswith("python") and not getattr(sys, "frozen", False)
    return KEPT and cores > 1 and is_python and first_rank and not helps_nobody


def _paths() -> list[str]:
    """The folders in which this process found the packages, in its own order."""
    specs = (importlib.util.find_spec(name) for name in NEEDS)
    homes = {str(Path(spec.origin).parent.parent) for spec in specs if spec is not None and spec.origin}
    return sorted(homes, key=lambda home: (sys.path.index(home) if home in sys.path else -1, home))


class _Obey(event.Listener):
    """Stands still or ends at the next pass of the compiler, a few hundredths of a second later, as the parent wants it."""

    def __init__(self, folder: Path, parent: int):
        self.pause, self.parent = folder / shared_work.PAUSE, parent

    def on_start(self, event: Any) -> None:
        self.look()

    def on_end(self, event: Any) -> None:
        pass

    def look(self) -> None:
        while self.parent_works() and self.pause.exists():
            time.sleep(shared_work.LOOK_EVERY_S)
        if not self.parent_works():
            shutil.rmtree(self.pause.parent, ignore_errors=True)
            sys.exit()

    def parent_works(self) -> bool:
        return os.getppid() == self.parent


def main(folder: Path, parent: int) -> None:
    """Compile what nobody has taken, until all is done or the process `parent` has ended.

    The other process calls kernels in about the reverse order.
    """
    obey = _Obey(folder, parent)
    event.register("numba:run_pass", obey)
    share = shared_work.Share(folder, obey.parent_works)
    shared_work.begin(share)
    for kernel, types in remaining():
        obey.look()
        if not share.taken(shared_work.label(kernel, types)):
            kernel.compile(types)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
