"""The peak memory of a step, measured in two ways: by its storages, and by the device's allocator.

`storage_peak` follows the live storages at operator boundaries. It works on fake tensors too (any size, no memory needed) and
gives the same number on every run, but does not see memory that lives only inside a kernel. `allocator_peak` sees every byte,
on real tensors only.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import UsageError
from ..costs.allocations import cpu_allocations, peak_and_end, recording_is_safe
from ..tensors.instrument import Instrument, Together
from ..tensors.op_tensors import storage_of, tensors_in


@dataclass(frozen=True)
class StoragePeak:
    """The peak of the storages that a step made.

    peak_bytes : the most bytes that lived at once, after any operator. peak_op : the operator after which they did.
    left_bytes : bytes of the storages that still live after the step.
    """

    peak_bytes: int
    peak_op: str
    left_bytes: int


@dataclass(frozen=True)
class AllocatorPeak:
    """The peak of a device's allocator during a step.

    peak_bytes : the most bytes allocated at once, above the level at entry. left_bytes : the level after the step, minus the
    level at entry; negative if the step freed more than it allocated.
    """

    peak_bytes: int
    left_bytes: int


def storage_peak(
    step: Callable[[], Any], known: Iterable[torch.Tensor] = (), also: Sequence[Instrument] = ()
) -> StoragePeak:
    """Run `step` and follow the storages that it makes, real or fake.

    also : other instruments that see the same run.
    known : tensors whose storages never count. A storage that an operator reads before any operator has made it is older than
        the step and does not count either, so parameters and gradients need not be named.
    """
    gc.collect()
    storages = Storages(known)
    with Together(storages, *also):
        step()
    storages.refresh()
    return StoragePeak(storages.peak, storages.peak_op, storages.live)


class Storages(Instrument):
    """Registers the storages of every operator's results; the callback of a weak reference removes them."""

    # torch.tensor(...) fills its storage unseen and then lifts it: the argument of the lift is a new storage too
    LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default)

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.made: dict[int, tuple[weakref.ref[Any], int]] = {}  # id of the storage -> itself, its bytes
        self.older: dict[int, weakref.ref[Any]] = {}
        self.live = self.peak = 0
        self.peak_op = ""
        for t in known:
            self._note(t, new=False)

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        if func not in self.LIFTS:
            self._note_all((args, kwargs), new=False)

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        self._note_all(out, new=True)
        if self.live > self.peak:
            self.refresh()  # `storage.resize_(0)` is no operator, and was not seen
            if self.live > self.peak:
                self.peak, self.peak_op = self.live, str(func)

    def refresh(self) -> None:
        """Read the size of every live storage again."""
        for key, (ref, _) in list(self.made.items()):
            storage = ref()
            if storage is not None:
                self._resize(key, storage)

    def _note_all(self, tree: Any, new: bool) -> None:
        for t in tensors_in(tree):
            self._note(t, new)

    def _note(self, t: torch.Tensor, new: bool) -> None:
        storage = storage_of(t)
        if storage is None:
            return
        key = id(storage)  # stable: a storage keeps its Python object as long as it lives
        if key in self.made:
            self._resize(key, storage)
        elif key not in self.older:
            if new:
                self.made[key] = (weakref.ref(storage, lambda _: self._gone(key)), 0)
                self._resize(key, storage)
            else:
                self.older[key] = weakref.ref(storage, lambda _: self.older.pop(key, None))

    def _resize(self, key: int, storage: Any) -> None:
        ref, old = self.made[key]
        size = int(storage.nbytes())
        if size != old:
            self.made[key] = (ref, size)
            self.live += size - old

    def _gone(self, key: int) -> None:
        _, size = self.made.pop(key, (None, 0))
        self.live -= size


def allocator_peak(step: Callable[[], Any], device: str | torch.device = "cpu") -> AllocatorPeak:
    """Run `step` on real tensors and read the allocator of `device`, "cpu" or a CUDA device. Temporaries of kernels count.

    On the CPU only memory that the calling thread and backward allocate through torch is seen. While a profiler runs in another
    thread, a recording would end the process: then memory is measured as by `storage_peak`, and a warning says so.

    Raises
    ------
    UsageError : the device has no allocator that can be read, or another profiler is running in this thread.
    """
    device = torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"the allocator of device {str(device)!r} cannot be read; measure on cpu or cuda")
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        start = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        left = torch.cuda.memory_allocated(device) - start
        return AllocatorPeak(torch.cuda.max_memory_allocated(device) - start, left)
    if not recording_is_safe():
        found = storage_peak(step)
        return AllocatorPeak(found.peak_bytes, found.left_bytes)
    with cpu_allocations() as log:
        step()
    return AllocatorPeak(*peak_and_end(delta for _, delta in log.events))
