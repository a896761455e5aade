"""Seconds and workspace of operator calls, measured by running them: once under a memory recording, then under a clock."""

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

from ..capture.private import profiler_is_running
from ..capture.rules import runnable
from .allocations import cpu_allocations, peak_and_end
from .made_up import new_bytes, real_arguments
from .operator_calls import OperatorCall

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClockSettings:
    """How often operator calls are timed. The values are guesses; on a shared machine a single run was seen to take ten times
    too long.

    slow_s : a call that takes longer is run once a round, and its first time may be stored.
    settle_s : seconds in which `measure_cpu` times calls again.
    rounds_most : rounds in which a call is timed again.
    agree_ratio : no further round once the two least times are within this factor of each other.
    round_s, runs_least, runs_most : a round on the CPU runs a call for about round_s seconds, this many times.
    cuda_runs, cuda_rounds : calls queued in a round on a GPU, as a step queues them; and rounds.
    """

    slow_s: float = 0.05
    settle_s: float = 3.0
    rounds_most: int = 5
    agree_ratio: float = 1.2
    round_s: float = 0.005
    runs_least: int = 3
    runs_most: int = 20
    cuda_runs: int = 5
    cuda_rounds: int = 3


SETTINGS = ClockSettings()


@dataclass
class Measured:
    """Measured seconds and workspace bytes per call. settled : the calls whose figures are steady enough to store."""

    seconds: dict[OperatorCall, float] = field(default_factory=dict)
    workspace: dict[OperatorCall, int] = field(default_factory=dict)
    settled: set[OperatorCall] = field(default_factory=set)


def measure_cpu(calls: Sequence[OperatorCall], found: Measured, limit_s: float) -> None:
    """Run each call once under one memory recording, then again under a clock.

    The second part takes `ClockSettings.settle_s` at most and starts with the quickest calls, whose single run says least.
    A call that is slow keeps the time of its single run.
    """
    start = time.perf_counter()
    ran: list[tuple[OperatorCall, str, int]] = []
    room = _free_memory()
    record = not profiler_is_running()  # torch allows one recording at a time, and the caller has one
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
    found.settled |= {call for call, _, _ in ran if found.seconds[call] > SETTINGS.slow_s}
    quickest = sorted((call for call, _, _ in ran), key=found.seconds.__getitem__)
    pending = {call: [found.seconds[call]] for call in quickest}
    stop = time.perf_counter() + SETTINGS.settle_s
    for turn in range(SETTINGS.rounds_most):
        for call, times in list(pending.items()):
            if time.perf_counter() > stop:
                return
            with _tried(call):
                times += _clocked(call, times[0])
                found.seconds[call], second = sorted(times)[:2]
                if second <= SETTINGS.agree_ratio * found.seconds[call] or turn == SETTINGS.rounds_most - 1:
                    found.settled.add(call)
                    del pending[call]


def _once(call: OperatorCall, mark: str) -> tuple[float, int]:
    """Seconds of one marked run, and bytes of its new results."""
    args, kwargs = real_arguments(call)
    begin = time.perf_counter()
    with record_function(mark):
        out = runnable(call.target)(*args, **kwargs)
    return time.perf_counter() - begin, new_bytes(out, (args, kwargs))


def _clocked(call: OperatorCall, rough: float) -> list[float]:
    """Seconds of each of a few runs. The time to free the results counts, since a step frees them too."""
    args, kwargs = real_arguments(call)
    times = []
    s = SETTINGS
    runs = min(s.runs_most, max(s.runs_least, round(s.round_s / max(rough, 1e-6))))
    for _ in range(1 if rough > s.slow_s else runs):
        begin = time.perf_counter()
        runnable(call.target)(*args, **kwargs)
        times.append(time.perf_counter() - begin)
    return times


def measure_cuda(calls: Sequence[OperatorCall], found: Measured, limit_s: float) -> None:
    """Measure each call by itself, for `limit_s` seconds at most."""
    start = time.perf_counter()
    for call in calls:
        if time.perf_counter() - start > limit_s:
            break
        with _tried(call), torch.cuda.device(call.device):
            found.seconds[call], found.workspace[call] = _once_cuda(call)
            found.settled.add(call)


def _once_cuda(call: OperatorCall) -> tuple[float, int]:
    """Seconds and workspace of a call.

    It runs once to load its kernels and the lasting buffers of the libraries, once for memory, and a few times for time.
    """
    args, kwargs = real_arguments(call)
    new = new_bytes(runnable(call.target)(*args, **kwargs), (args, kwargs))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    # requested bytes, before the allocator rounds them up
    level = torch.cuda.memory_stats()["requested_bytes.all.current"]
    begin = time.perf_counter()
    runnable(call.target)(*args, **kwargs)
    torch.cuda.synchronize()
    rough = time.perf_counter() - begin
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    return _clocked_cuda(call, args, kwargs, rough), max(0, peak - level - new)


def _clocked_cuda(call: OperatorCall, args: Any, kwargs: Any, rough: float) -> float:
    """The least seconds per run over a few rounds. A round of short runs queues several, as a step does."""
    inner = 1 if rough > SETTINGS.slow_s else SETTINGS.cuda_runs
    best = math.inf
    for _ in range(1 if rough > SETTINGS.slow_s else SETTINGS.cuda_rounds):
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
    """Log an error inside and go on: a call that cannot run on made-up inputs is estimated."""
    try:
        yield
    except Exception as e:
        log.debug("%s not measured: %s", call.key, e)


def _free_memory() -> float:
    """Bytes of memory that the machine still has; infinity where it does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return math.inf
