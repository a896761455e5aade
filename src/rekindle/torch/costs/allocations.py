"""The memory that this process may still take, and a recording of every allocation and release of the CPU's allocator."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ...errors import UsageError
from ...saying import notices
from ..private import profiler_is_running, profiler_runs_elsewhere, record_allocations, recorded_allocations


def free_memory() -> float:
    """Bytes that the machine, and the container of this process, still have; infinite where neither says."""
    left = [math.inf]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        left.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with contextlib.suppress(OSError, ValueError):  # a container without a limit says "max", which is no number
        most, used = (
            int(Path(f"/sys/fs/cgroup/memory.{what}").read_text(encoding="ascii")) for what in ("max", "current")
        )
        left.append(most - used)
    return min(left)


def peak_and_end(deltas: Iterable[int]) -> tuple[int, int]:
    """(highest level, last level) in bytes after these changes, from a level of 0."""
    peak = level = 0
    for delta in deltas:
        level += delta
        peak = max(peak, level)
    return peak, level


@dataclass
class CpuAllocations:
    """The events of the CPU's allocator, filled in when the recording ends.

    events : (time in ns, bytes allocated or, below zero, freed), by time.
    marks : name of each `torch.autograd.profiler.record_function` -> (start, end) in ns of the same clock.
    """

    events: list[tuple[int, int]] = field(default_factory=list)
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)


def recording_is_safe() -> bool:
    """Whether the allocator can be recorded; while a profiler runs in another thread it cannot, and a warning says so."""
    if elsewhere := profiler_runs_elsewhere():
        notices.warn(
            "a profiler is running in another thread, beside which the CPU's allocator cannot be recorded: memory is measured "
            "by tensors alone, and what operators allocate inside of them is not seen. Stop the profiler to measure it"
        )
    return not elsewhere


@contextmanager
def cpu_allocations(mark: str = "rekindle:") -> Iterator[CpuAllocations]:
    """Record every allocation and release of the CPU's allocator, and the marks whose name starts with `mark`.

    Raises
    ------
    UsageError : another profiler is running; torch allows one at a time.
    """
    if profiler_is_running() or profiler_runs_elsewhere():
        raise UsageError("memory cannot be measured while another profiler is running; stop it first")
    log = CpuAllocations()
    # the plain autograd profiler: `torch.profiler` imports all of Inductor (a second) before its first use
    with _quiet():
        record_allocations()
    try:
        yield log
    finally:
        with _quiet():
            events = recorded_allocations()
    for e in events:
        name = e.name()
        if name == "[memory]":
            if e.device_type() == torch.autograd.DeviceType.CPU:
                log.events.append((e.start_ns(), e.nbytes()))
        elif name.startswith(mark):
            log.marks[name] = (e.start_ns(), e.start_ns() + e.duration_ns())
    log.events.sort(key=lambda e: e[0])


_is_quiet = False


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the profiler from announcing its start and stop on stderr. It reads the variable once in a process: later ones are
    left alone, since other threads may read the environment."""
    global _is_quiet
    name = "KINETO_LOG_LEVEL"
    if _is_quiet or name in os.environ:
        yield
        return
    os.environ[name], _is_quiet = "6", True
    try:
        yield
    finally:
        del os.environ[name]
