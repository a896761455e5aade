"""Work that two processes share: whoever comes first to a kernel compiles it, and the other one waits and reads the result.

The processes have a folder in common. Who creates the file `<label>` there compiles the kernel of that label, and creates
`<label>.done` afterwards. A process that finds the file there waits, but never for a process that has ended.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAUSE = "pause"  # while a file of that name is in the folder, the second process stands still
LOOK_EVERY_S = 0.02
WAIT_MOST_S = 60.0  # for one kernel; on a machine that is so busy, compiling it twice is no longer the worst


@dataclass
class Share:
    """One process's part in the work.

    folder : common to both processes.
    other_works : whether the other process may still finish what it began.
    own : labels of the kernels that this process took.
    """

    folder: Path
    other_works: Callable[[], bool]
    own: set[str] = field(default_factory=set)

    def take(self, label: str) -> bool:
        """Whether this process compiles the kernel. False: the other process does, or did."""
        if label in self.own:
            return True
        try:
            (self.folder / label).touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:  # the other process has ended, and removed the folder
            pass
        self.own.add(label)
        return True

    def taken(self, label: str) -> bool:
        """Whether either process has taken the kernel."""
        return (self.folder / label).exists()

    def finish(self, label: str) -> None:
        """Let the other process go on that waits for the kernel."""
        with suppress(OSError):
            (self.folder / f"{label}.done").touch()

    def wait(self, label: str) -> None:
        """Wait until the other process has compiled the kernel, has ended, or takes too long."""
        (self.folder / PAUSE).unlink(missing_ok=True)
        until = time.monotonic() + WAIT_MOST_S
        while not (self.folder / f"{label}.done").exists() and self.other_works() and time.monotonic() < until:
            time.sleep(LOOK_EVERY_S)


_share: Share | None = None


def begin(share: Share | None) -> None:
    """Share all further work of this process; None: compile alone again."""
    global _share
    _share = share


def going_on() -> bool:
    """Whether another process may be at work."""
    return _share is not None and _share.other_works()


def label(kernel: Any, signature: Any) -> str:
    """The name of a kernel with the types of its arguments, for files."""
    types = hashlib.sha256(repr(signature).encode()).hexdigest()[:16]
    return f"{kernel.py_func.__module__.rpartition('.')[2]}.{kernel.py_func.__name__}.{types}"


@contextmanager
def turn(label: str) -> Iterator[None]:
    """Compile the kernel of a label within this context: at once, or after the other process, from its result on disk."""
    share = _share
    if share is None:
        yield
    elif share.take(label):
        try:
            yield
        finally:
            share.finish(label)
    else:
        share.wait(label)
        yield
