"""Runs of operator calls on NVIDIA GPUs: seconds by CUDA events, workspace by the allocator's peak."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..operators.rules import runnable
from .clock import RUNS_MOST, SLOW_S, Measured, measure
from .made_up import new_bytes
from .operator_calls import OperatorCall


def measure_cuda(calls: Sequence[OperatorCall], counts: Mapping[OperatorCall, int], found: Measured) -> None:
    """Measure calls on GPUs. counts : how often the step runs each."""
    runner = CudaRunner(found)
    measure(calls, counts, runner, found, math.inf)


class CudaRunner:
    """Runs calls on a GPU. A call that does not fit its memory raises, and is then estimated."""

    def __init__(self, found: Measured) -> None:
        self._found = found

    def clock(self) -> WallClock:
        return WallClock()

    def once(self, call: OperatorCall, args: Any, kwargs: Any) -> float:
        """Seconds per run. Before, it runs once to load kernels and the lasting buffers of libraries, and once for memory."""
        with torch.cuda.device(call.device):
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
            self._found.workspace[call] = max(0, peak - level - new)
        return self.runs(call, args, kwargs, number=1 if rough > SLOW_S else RUNS_MOST)

    def runs(self, call: OperatorCall, args: Any, kwargs: Any, number: int) -> float:
        """The runs are queued together, as a step queues them."""
        with torch.cuda.device(call.device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(number):
                runnable(call.target)(*args, **kwargs)
            end.record()
            end.synchronize()
            return max(1e-9, begin.elapsed_time(end) / 1e3 / number)


class WallClock:
    """Seconds that pass."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()

    def seconds(self) -> float:
        """Seconds since the clock was made."""
        return time.perf_counter() - self._begin
