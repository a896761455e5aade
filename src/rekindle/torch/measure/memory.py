"""The peak memory of a step, by its storages or by the device's allocator, and its levels at marks that code inside sets.

`storage_peak` follows the live storages at operator boundaries. It works on fake tensors too (any size, no memory needed) and
gives the same number on every run, but does not see memory that lives only inside a kernel. `allocator_peak` sees every byte,
on real tensors only.
"""

from __future__ import annotations

import bisect
import contextlib
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.profiler import record_function

from ...errors import UsageError
from ..costs.allocations import cpu_allocations, peak_and_end, recording_is_safe
from ..tensors.op_tensors import Instrument, Together, storage_of, tensors_in

PREFIX = "rekindle: "  # of the names of marks in a recording
PYTHONS_OWN = 1_000  # more objects than Python freezes itself: 375 in 3.12, none in 3.11


@dataclass(frozen=True)
class Peak:
    """The memory of a step.

    peak_bytes : the most bytes at once: of the storages that the step made, after any operator, or of the allocator above its
        level at entry.
    left_bytes : bytes after the step, counted likewise; below zero if it freed more than it allocated.
    peak_op : the operator after which the storages took most bytes; "" where an allocator was read, which names none.
    """

    peak_bytes: int
    left_bytes: int
    peak_op: str = ""


def storage_peak(step: Callable[[], Any], known: Iterable[torch.Tensor] = (), also: Sequence[Instrument] = ()) -> Peak:
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
    return Peak(storages.peak, storages.live, storages.peak_op)


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


@dataclass(frozen=True)
class Level:
    """The memory at one mark, in bytes above the level at the step's begin.

    name : of the mark; "" is the end of the step. level : bytes then. peak : the most since the mark before.
    """

    name: str
    level: int
    peak: int


class Levels:
    """Measures one step. Code inside calls `mark` with a name that it uses once.

    device : its allocator is read. known : None on real tensors; on fake ones the tensors whose storages never count, and the
        storages that operators make are followed.
    found : the levels at the marks, and at the end.
    """

    def __init__(self, device: torch.device, known: Iterable[torch.Tensor] | None = None):
        self.found: list[Level] = []
        self._device, self._known = device, known
        self._note: Callable[[str], None] | None = None

    def mark(self, name: str) -> None:
        """Note the memory now."""
        if self._note is not None:
            self._note(name)

    def measure(self, step: Callable[[], Any]) -> int:
        """Run the step; gives its peak in bytes above the level at its begin. Raises as `allocator_peak`."""
        if (kind := self._device.type) not in ("cpu", "cuda") and self._known is None:
            raise UsageError(f"the allocator of device {kind!r} cannot be read; measure on cpu or cuda")
        gc.collect()
        try:
            if self._known is not None:
                self._by_storages(step, self._known)
            elif self._device.type == "cuda":
                self._on_cuda(step)
            elif not recording_is_safe():
                self._by_storages(step, ())
            else:
                self._on_cpu(step)
        finally:
            self._note = None
        return max((x.peak for x in self.found), default=0)

    def _by_storages(self, step: Callable[[], Any], known: Iterable[torch.Tensor]) -> None:
        storages = Storages(known)

        def note(name: str) -> None:
            storages.refresh()
            self.found.append(Level(name, storages.live, max(storages.peak, storages.live)))
            storages.peak = storages.live

        self._note = note
        with storages:
            step()
        note("")

    def _on_cuda(self, step: Callable[[], Any]) -> None:
        device = self._device
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        start = torch.cuda.memory_allocated(device)

        def note(name: str) -> None:
            level = torch.cuda.memory_allocated(device) - start
            self.found.append(Level(name, level, torch.cuda.max_memory_allocated(device) - start))
            if name:  # after the step, whoever reads the peak finds the step's
                torch.cuda.reset_peak_memory_stats(device)

        self._note = note
        step()
        torch.cuda.synchronize(device)
        note("")

    def _on_cpu(self, step: Callable[[], Any]) -> None:
        def note(name: str) -> None:
            with record_function(PREFIX + name):
                pass

        self._note = note
        with cpu_allocations(PREFIX) as log:
            step()
        marks = sorted((begin, name.removeprefix(PREFIX)) for name, (begin, _) in log.marks.items())
        level, at = 0, 0
        for begin, name in [*marks, (None, "")]:
            until = len(log.events) if begin is None else bisect.bisect_left(log.events, (begin,))
            peak, end = peak_and_end(delta for _, delta in log.events[at:until])
            self.found.append(Level(name, level + end, level + peak))
            level, at = level + end, until


def allocator_peak(step: Callable[[], Any], device: str | torch.device = "cpu") -> Peak:
    """Run `step` on real tensors and read the allocator of `device`, "cpu" or a CUDA device. Temporaries of kernels count.

    On the CPU only memory that the calling thread and backward allocate through torch is seen. While a profiler runs in another
    thread, a recording would end the process: then memory is measured as by `storage_peak`, and a warning says so.

    Raises
    ------
    UsageError : the device has no allocator that can be read, or another profiler is running in this thread.
    """
    levels = Levels(torch.device(device))
    peak_bytes = levels.measure(step)
    return Peak(peak_bytes, levels.found[-1].level)


@contextlib.contextmanager
def old_objects_aside(collect: bool = True) -> Iterator[None]:
    """Inside, collections of garbage look only at objects that were made inside. collect : begin with a collection of all.

    A measured step begins with a collection, so that no tensor that only a cycle of references holds is counted. With torch and
    a model library imported, one collection takes a quarter of a second, nearly all of it for objects that never go away. If
    the caller has frozen objects, nothing is done: they would be unfrozen at the end.
    """
    if gc.get_freeze_count() > PYTHONS_OWN:
        yield
        return
    if collect:
        gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
