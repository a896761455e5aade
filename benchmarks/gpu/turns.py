"""Turns between processes, by file locks, which end with the process that holds them."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GPU, KERNELS = "gpu.lock", "kernels.lock"


@contextmanager
def turn(path: Path, shared: bool = False) -> Iterator[None]:
    """Wait for the lock on `path` and hold it, alone or shared with other shared holders."""
    with path.open("a") as f:
        fcntl.flock(f, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield


def passed(path: Path) -> None:
    """Wait until no process holds `path` alone."""
    with turn(path, shared=True):
        pass
