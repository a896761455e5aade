"""Instruments for the memory and time of a step, on a CUDA device or (to test the script) on the CPU."""

from __future__ import annotations

import gc
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rekindle.torch.costs.cache import cpu_model
from rekindle.torch.measure.memory import allocator_peak
from rekindle.torch.tensors import precision

Step = Callable[[], Any]


@dataclass(frozen=True)
class Memory:
    """The memory of one step, in bytes. None: the device cannot tell.

    level_bytes : allocated before the step. peak_bytes : most allocated above that level.
    requested_peak_bytes : the same before the allocator rounds requests up.
    reserved_bytes : most that the allocator took from the device in all, beginning with an empty cache.
    """

    level_bytes: int
    peak_bytes: int
    requested_peak_bytes: int | None
    reserved_bytes: int | None


class Cuda:
    """The current CUDA device."""

    kind = "cuda"

    def facts(self) -> dict[str, Any]:
        """The device and the settings on which its results depend."""
        p = torch.cuda.get_device_properties(0)
        return {
            "device": torch.cuda.get_device_name(0),
            "device_bytes": self.device_bytes(),
            "multiprocessors": p.multi_processor_count,
            "capability": f"{p.major}.{p.minor}",
            "driver": _driver(),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "tf32_convolutions": torch.backends.cudnn.allow_tf32,
            "float32_products": precision.of_products(),
            "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        }

    def memory(self, step: Step, held_bytes: int) -> Memory:
        """Run `step`, beginning with an empty cache. held_bytes : level for devices that cannot tell it.

        Raises
        ------
        torch.OutOfMemoryError : the step does not fit the device, or the cap.
        """
        self.release()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        level = torch.cuda.memory_allocated()
        requested = torch.cuda.memory_stats().get("requested_bytes.all.current", 0)
        step()
        torch.cuda.synchronize()
        most = torch.cuda.memory_stats().get("requested_bytes.all.peak", 0)
        return Memory(
            level, torch.cuda.max_memory_allocated() - level, most - requested, torch.cuda.max_memory_reserved()
        )

    def seconds(self, step: Step) -> float:
        """Seconds of one step, from an idle device to an idle device, by events."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        step()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def device_bytes(self) -> int | None:
        """All memory of the device; None is unknown."""
        return torch.cuda.mem_get_info(0)[1]

    def free_bytes(self) -> int | None:
        """The most that this process may hold, beside contexts and other processes; None is unknown."""
        return torch.cuda.mem_get_info(0)[0] + torch.cuda.memory_reserved(0)

    def cap(self, limit_bytes: int) -> None:
        """Limit what this process may reserve; the limit is at most the device's memory."""
        torch.cuda.set_per_process_memory_fraction(limit_bytes / torch.cuda.mem_get_info(0)[1], 0)

    def release(self) -> None:
        """Return the allocator's unused memory to the device."""
        gc.collect()
        torch.cuda.empty_cache()


class Cpu:
    """This machine's CPU; a cap only checks the measured peak."""

    kind = "cpu"

    def __init__(self) -> None:
        self._limit: int | None = None

    def facts(self) -> dict[str, Any]:
        """The processor."""
        return {"device": cpu_model(), "device_bytes": self.device_bytes()}

    def memory(self, step: Step, held_bytes: int) -> Memory:
        """See `Cuda`."""
        self.release()
        peak = allocator_peak(step).peak_bytes
        if self._limit is not None and held_bytes + peak > self._limit:
            raise torch.OutOfMemoryError(f"{held_bytes + peak} bytes are more than the cap of {self._limit}")
        return Memory(held_bytes, peak, None, None)

    def seconds(self, step: Step) -> float:
        """Seconds of one step."""
        begin = time.perf_counter()
        step()
        return time.perf_counter() - begin

    def device_bytes(self) -> int | None:
        """See `Cuda`."""
        return None

    def free_bytes(self) -> int | None:
        """See `Cuda`."""
        return None

    def cap(self, limit_bytes: int) -> None:
        """Let `memory` refuse a step that holds more than the limit."""
        self._limit = limit_bytes

    def release(self) -> None:
        """Collect garbage."""
        gc.collect()


Device = Cuda | Cpu


def get(kind: str) -> Device:
    """The instruments for "cuda" or "cpu"."""
    return Cuda() if kind == "cuda" else Cpu()


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.split("\n")[0].strip() or None
