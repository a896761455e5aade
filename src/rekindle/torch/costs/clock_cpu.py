"""Runs of operator calls on the CPU: seconds by the processor's clocks, workspace by a recording of the allocator."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.autograd.profiler import record_function

from ..operators.rules import runnable
from ..private import profiler_is_running, profiler_runs_elsewhere
from .allocations import CpuAllocations, cpu_allocations, free_memory, peak_and_end
from .clock import Measured, measure
from .made_up import new_bytes
from .operator_calls import OperatorCall

log = logging.getLogger(__name__)
LEAST_S = 1e-9  # clocks may stand still


def measure_cpu(calls: Sequence[OperatorCall], counts: Mapping[OperatorCall, int], found: Measured) -> None:
    """Measure calls on the CPU. counts : how often the step runs each."""
    runner = CpuRunner()
    try:
        measure(calls, counts, runner, found, free_memory())
    finally:
        runner.stop()
    found.workspace |= runner.workspace()


class CpuRunner:
    """Runs calls on the CPU; memory is recorded until the first run that is only timed."""

    def __init__(self) -> None:
        self._marks: dict[OperatorCall, tuple[str, int]] = {}  # and the bytes of new results
        self._stack = ExitStack()
        self._recorded: CpuAllocations | None = None
        # Torch allows one recording at a time, and the caller has one.
        if profiler_is_running() or profiler_runs_elsewhere():
            log.warning("a profiler is running: the workspace of operators cannot be measured and counts as 0")
        else:
            self._recorded = self._stack.enter_context(cpu_allocations())

    def clock(self) -> Clock:
        return Clock()

    def once(self, call: OperatorCall, args: Any, kwargs: Any) -> float:
        mark = f"rekindle:{len(self._marks)}"
        with record_function(mark):
            clock = Clock()
            out = runnable(call.target)(*args, **kwargs)
            seconds = clock.seconds()
        self._marks[call] = mark, new_bytes(out, (args, kwargs))
        return seconds

    def runs(self, call: OperatorCall, args: Any, kwargs: Any, number: int) -> float:
        self.stop()
        return min(_one_run(call, args, kwargs) for _ in range(number))

    def stop(self) -> None:
        """End the recording."""
        self._stack.close()

    def workspace(self) -> dict[OperatorCall, int]:
        """Bytes that the recorded calls needed beside inputs and outputs; after `stop`."""
        if self._recorded is None:
            return {}
        at = [t for t, _ in self._recorded.events]
        found = {}
        for call, (mark, new) in self._marks.items():
            first, last = (bisect_left(at, t) for t in self._recorded.marks[mark])
            peak, _ = peak_and_end(delta for _, delta in self._recorded.events[first:last])
            found[call] = max(0, peak - new)
        return found


def _one_run(call: OperatorCall, args: Any, kwargs: Any) -> float:
    """Seconds of one run. The time to free the results counts, since a step frees them too."""
    clock = Clock()
    runnable(call.target)(*args, **kwargs)
    return clock.seconds()


class Clock:
    """Seconds that a run takes on an idle machine, as far as they can be told on a busy one.

    While other programs hold a core, this thread or one of its helpers waits for it. Therefore the processor's time
    counts: this thread's own, or the process's divided by the number of threads, whichever is longer. More than passed on
    the wall never counts.
    """

    def __init__(self) -> None:
        self._process, self._thread, self._wall = time.process_time(), time.thread_time(), time.perf_counter()

    def seconds(self) -> float:
        """Seconds since the clock was made."""
        wall, thread = time.perf_counter() - self._wall, time.thread_time() - self._thread
        process = time.process_time() - self._process
        return max(LEAST_S, min(wall, max(thread, process / torch.get_num_threads())))
