"""Seconds and workspace of operator calls, by running them: under a memory recording, then under a clock."""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import record_function

from ..capture.rules import runnable
from .memory import cpu_allocations, peak_and_end
from .operator_calls import OperatorCall, new_bytes, real_arguments

log = logging.getLogger(__name__)
SLOW = 0.05  # seconds; above it one timed run a round is enough
SETTLE_S = 3.0  # seconds spent on taking times again, per call of `measure_cpu`
ROUNDS = 5  # in which a time is taken again, where the two least so far are not yet within
AGREE = 1.2  # of each other: on a shared machine a single run may take ten times too long


@dataclass
class Measured:
    """By call: seconds, and workspace in bytes. settled : those whose figures may be kept on disk."""

    seconds: dict[OperatorCall, float] = field(default_factory=dict)
    workspace: dict[OperatorCall, int] = field(default_factory=dict)
    settled: set[OperatorCall] = field(default_factory=set)


def measure_cpu(calls: Sequence[OperatorCall], found: Measured, limit_s: float) -> None:
    """Each call once under one memory recording, then again under a clock, for SETTLE_S at most and the quickest first:
    a single run says least of them, and a single long run is taken as it is."""
    start = time.perf_counter()
    ran: list[tuple[OperatorCall, str, int]] = []
    room = _free_memory()
    record = not torch.autograd._profiler_enabled()  # only one recording at a time: the caller's goes on
    if not record:
        log.warning("a profiler is running: the workspace of operators cannot be measured and counts as 0")
    with ExitStack() as stack:
        recorded = stack.enter_context(cpu_allocations()) if record else None
        for i, call in enumerate(calls):
            if time.perf_counter() - start > limit_s:
                log.debug("%d of %d operators not measured: no time left", len(calls) - i, len(calls))
                break
            if 2 * call.bytes_moved > room:
                log.debug("%s not measured: too large for this machine", call.target)
                continue
            with _tried(call):
                mark = f"rekindle:{i}"
                found.seconds[call], new = _once(call, mark)
                ran.append((call, mark, new))
    if recorded is not None:
        at = [t for t, _ in recorded.events]
        for call, mark, new in ran:
            first, last = (bisect_left(at, t) for t in recorded.marks[mark])
            peak, _ = peak_and_end(delta for _, delta in recorded.events[first:last])
            found.workspace[call] = max(0, peak - new)
    found.settled |= {call for call, _, _ in ran if found.seconds[call] > SLOW}
    quickest = sorted((call for call, _, _ in ran), key=found.seconds.__getitem__)
    pending = {call: [found.seconds[call]] for call in quickest}
    stop = time.perf_counter() + SETTLE_S
    for turn in range(ROUNDS):
        for call, times in list(pending.items()):
            if time.perf_counter() > stop:
                return
            with _tried(call):
                times += _clocked(call, times[0])
                found.seconds[call], second = sorted(times)[:2]
                if second <= AGREE * found.seconds[call] or turn == ROUNDS - 1:
                    found.settled.add(call)
                    del pending[call]


def _once(call: OperatorCall, mark: str) -> tuple[float, int]:
    """Seconds of one marked run, and bytes of what it made."""
    args, kwargs = real_arguments(call)
    begin = time.perf_counter()
    with record_function(mark):
        out = runnable(call.target)(*args, **kwargs)
    return time.perf_counter() - begin, new_bytes(out, (args, kwargs))


def _clocked(call: OperatorCall, rough: float) -> list[float]:
    """Seconds of a few runs, releasing the results included (a step releases them too)."""
    args, kwargs = real_arguments(call)
    times = []
    for _ in range(1 if rough > SLOW else min(20, max(3, round(0.005 / max(rough, 1e-6))))):
        begin = time.perf_counter()
        runnable(call.target)(*args, **kwargs)
        times.append(time.perf_counter() - begin)
    return times


def measure_cuda(calls: Sequence[OperatorCall], found: Measured, limit_s: float) -> None:
    """Each call by itself, until the time is up."""
    start = time.perf_counter()
    for call in calls:
        if time.perf_counter() - start > limit_s:
            break
        with _tried(call), torch.cuda.device(call.device):
            found.seconds[call], found.workspace[call] = _once_cuda(call)
            found.settled.add(call)


def _once_cuda(call: OperatorCall) -> tuple[float, int]:
    """Seconds and workspace of a call: run once to load its kernels and the libraries' lasting buffers, once for
    memory, a few times for time."""
    args, kwargs = real_arguments(call)
    new = new_bytes(runnable(call.target)(*args, **kwargs), (args, kwargs))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    # bytes as asked for, before the allocator rounds them up
    level = torch.cuda.memory_stats()["requested_bytes.all.current"]
    begin = time.perf_counter()
    runnable(call.target)(*args, **kwargs)
    torch.cuda.synchronize()
    rough = time.perf_counter() - begin
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    return _clocked_cuda(call, args, kwargs, rough), max(0, peak - level - new)


def _clocked_cuda(call: OperatorCall, args: Any, kwargs: Any, rough: float) -> float:
    """The least seconds per run of a few rounds; a round of short runs queues several, as a step does."""
    inner = 1 if rough > SLOW else 5
    best = math.inf
    for _ in range(1 if rough > SLOW else 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(inner):
            runnable(call.target)(*args, **kwargs)
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3 / inner)
    return best


@contextmanager
def _tried(call: OperatorCall) -> Iterator[None]:
    """A call that cannot run on made-up inputs is estimated; it stops nothing."""
    try:
        yield
    except Exception as e:
        log.debug("%s not measured: %s", call.key, e)


def _free_memory() -> float:
    """Bytes that the machine can still give, where it says so."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return math.inf
