"""Turns between processes, by locked files: a process that dies gives its turn back."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GPU, KERNELS = "gpu.lock", "kernels.lock"


@contextmanager
def turn(path: Path, shared: bool = False) -> Iterator[None]:
    """Wait for `path` to be free, and hold it: alone, or shared with others who ask for it shared."""
    with path.open("a") as f:
        fcntl.flock(f, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield


def passed(path: Path) -> None:
    """Wait until nobody holds `path` alone."""
    with turn(path, shared=True):
        pass
