"""Copies of a step's values to the host and back, beside the ops that run.

Every edge between the two is an event: a copy begins after the ops before it, memory is freed after the copy out of it, and the
first op that reads a fetched value waits for the copy into it. Nothing relies on how long a copy takes. On a GPU two streams
copy, one each way; on a CPU a thread does.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from ...errors import RekindleError
from ...saying import notices
from ...saying.sizes import format_bytes
from ..costs.allocations import free_memory
from ..private import is_fake, saved_tensors_hooks_are_set

LEFT_TO_HOST_SHARE = 0.1  # of its free memory, which no plan takes
PAGE_BYTES = 4096
THREAD = "rekindle-copies"


class Event(Protocol):
    """The end of a copy."""

    def wait(self) -> None:
        """Let the ops that are asked for from now on run after it."""

    def synchronize(self) -> None:
        """Return once it is over."""


class Engine(Protocol):
    """Copies blocks of bytes, tensors of dtype uint8, in the order in which it is asked each way."""

    def out(self, device: torch.Tensor, host: torch.Tensor) -> Event:
        """Copy to the host, after the ops asked for so far."""

    def back(self, host: torch.Tensor, device: torch.Tensor, after: Event | None) -> Event:
        """Copy to the device, after the ops asked for so far and after the event, if there is one."""


@dataclass(frozen=True)
class StreamEvent:
    """An event on a stream of a GPU."""

    event: torch.cuda.Event
    device: torch.device

    def wait(self) -> None:
        torch.cuda.current_stream(self.device).wait_event(self.event)

    def synchronize(self) -> None:
        self.event.synchronize()


class GpuEngine:
    """The engine of a GPU: a stream for each way."""

    def __init__(self, device: torch.device):
        self._out, self._back = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def out(self, device: torch.Tensor, host: torch.Tensor) -> Event:
        return self._copy(self._out, host, device)

    def back(self, host: torch.Tensor, device: torch.Tensor, after: Event | None) -> Event:
        if after is not None:
            assert isinstance(after, StreamEvent)
            self._back.wait_event(after.event)
        return self._copy(self._back, device, host)

    def _copy(self, stream: torch.cuda.Stream, to: torch.Tensor, source: torch.Tensor) -> Event:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)
        return StreamEvent(stream.record_event(), stream.device)


@dataclass(frozen=True)
class ThreadEvent:
    """The end of a copy by a thread."""

    done: Future[Any]

    def wait(self) -> None:
        self.done.result()

    def synchronize(self) -> None:
        self.done.exception()  # waits, and leaves it to `wait` to raise


class ThreadEngine:
    """The engine of a CPU: one thread. The thread gets addresses and holds no tensor, so memory is freed when the program frees
    it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, THREAD)

    def out(self, device: torch.Tensor, host: torch.Tensor) -> Event:
        return ThreadEvent(self._thread.submit(ctypes.memmove, host.data_ptr(), device.data_ptr(), device.nbytes))

    def back(self, host: torch.Tensor, device: torch.Tensor, after: Event | None) -> Event:
        def copy(to: int, source: int, size: int) -> None:
            if after is not None:
                after.wait()
            ctypes.memmove(to, source, size)

        return ThreadEvent(self._thread.submit(copy, device.data_ptr(), host.data_ptr(), device.nbytes))

    def after(self, run: Callable[[], Any]) -> None:
        """Run it after the copies that were asked for so far."""
        self._thread.submit(run)


@functools.cache
def _engine(device: torch.device, process: int) -> Engine:
    if device.type not in ("cuda", "cpu"):
        raise RekindleError(f"values on {device.type} cannot be copied to the host by a plan; plan with offload=False")
    return GpuEngine(device) if device.type == "cuda" else ThreadEngine()


def engine_of(device: torch.device) -> Engine:
    """The engine of a device in this process: threads and streams do not outlive a fork."""
    return _engine(device, os.getpid())


def host_block(size: int, device: torch.device) -> torch.Tensor:
    """So many bytes of the host, pinned for a GPU. (PyTorch's own allocator of pinned memory takes the next power of two.)

    Raises
    ------
    RekindleError : the system pins no more.
    """
    # pages are pinned, so no two blocks share one
    pages = torch.empty((size // PAGE_BYTES + 2) * PAGE_BYTES, dtype=torch.uint8, device="cpu")
    begin = -pages.data_ptr() % PAGE_BYTES
    memory = pages[begin : begin + size]
    if device.type == "cuda":
        runtime: Any = torch.cuda.cudart()
        with torch.cuda.device(device):
            error = int(runtime.cudaHostRegister(memory.data_ptr(), size, 0))
        if error:
            raise RekindleError(
                f"the system pins no {format_bytes(size)} of host memory for copies (CUDA error {error})"
            )
        weakref.finalize(memory, runtime.cudaHostUnregister, memory.data_ptr())
    return memory


class Block(NamedTuple):
    """Host memory for the copies of one step. last : the end of the last copy out of it; None: nothing was copied out of it."""

    memory: torch.Tensor
    last: Event | None = None


class HostPool:
    """Blocks of host memory for the copies of one model's steps, which are used again by later steps.

    device : the device that copies to them; for a GPU they are pinned.
    """

    def __init__(self, device: torch.device):
        self._device, self._lock, self._process = device, threading.Lock(), os.getpid()
        self._idle: list[Block] = []
        self._total = 0

    def reserve(self, sizes: Iterable[int], most: int | None, is_last: bool = False) -> None:
        """Have blocks of so many bytes, before a step needs them. most : bytes of all blocks together; None: what they need.
        is_last : the blocks of other plans are gone already.

        Raises
        ------
        RekindleError : the host does not have so much memory.
        """
        wanted, taken = sorted(sizes, reverse=True), list[Block]()
        try:
            taken.extend(self._take(size, most) for size in wanted)
        except RekindleError:
            if is_last:
                raise
        finally:
            self._idle += taken
        if len(taken) < len(wanted):  # blocks of another plan may serve for smaller ones, and take the room
            with self._lock:
                self._drop_idle()
            self.reserve(wanted, most, is_last=True)

    def take(self, size: int, most: int | None) -> Block | None:
        """A block of at least so many bytes, for later ops to write; None: the host has no more room, which is said once."""
        try:
            block = self._take(size, most)
        except RekindleError as e:
            notices.warn(
                f"values stay on the device that a plan copies to the host, since more steps are in progress: {e}"
            )
            return None
        if block.last is not None:
            block.last.wait()
        return block

    def give(self, block: Block) -> None:
        """Take back a block that no step uses any more."""
        self._idle.append(block)  # one step of Python, so that a finaliser may do it at any time

    def _take(self, size: int, most: int | None) -> Block:
        with self._lock:
            fits = [i for i, b in enumerate(self._idle) if b.memory.nbytes >= size]
            if fits:
                return self._idle.pop(min(fits, key=lambda i: self._idle[i].memory.nbytes))
            self._drop_idle()  # too small, and the new block serves in its place
            left = min(host_room(), (math.inf if most is None else most) - self._total)
            if size > left:
                raise RekindleError(
                    f"a plan that copies values to the host needs {format_bytes(size)} of its memory, and "
                    f"{format_bytes(max(0, left))} are left for it; plan again with a smaller host_budget, or offload=False"
                )
            made = Block(host_block(size, self._device))
            self._total += size
            return made

    def __del__(self) -> None:
        if self._process == os.getpid():  # after a fork, the copies are the parent's
            idle = [*self._idle]
            once_over([b.last for b in idle], idle, lambda: None)

    def _drop_idle(self) -> None:
        while self._idle:
            memory, last = self._idle.pop()
            if last is not None:
                last.synchronize()
            self._total -= memory.nbytes


_pools: weakref.WeakKeyDictionary[nn.Module, dict[Any, HostPool]] = weakref.WeakKeyDictionary()


def pool_of(model: nn.Module, device: torch.device) -> HostPool:
    """The blocks that the model's steps on this device use in this process, by whichever of its plans they run."""
    return _pools.setdefault(model, {}).setdefault((device, os.getpid()), HostPool(device))


def host_room() -> float:
    """Bytes of the host that plans may take now."""
    return (1 - LEFT_TO_HOST_SHARE) * free_memory()


def once_over(events: Iterable[Event | None], kept: Any, then: Callable[[], None]) -> None:
    """Run `then` once the events are over. kept : what the copies use, which lives until then."""

    def finish(kept: Any = kept) -> None:
        for event in events:
            if event is not None:
                event.synchronize()
        then()

    if not threading.current_thread().name.startswith(THREAD):
        finish()
        return
    copier = engine_of(torch.device("cpu"))
    assert isinstance(copier, ThreadEngine)
    copier.after(finish)  # Python's collector runs in any thread, and this one must not wait for itself


@dataclass
class _Copy:
    """One value of which the host has a copy.

    host : its bytes in the step's block; None: it stays on the device, or is fake.
    fake : whether it takes no memory anywhere.
    parts : (dtype, shape, strides, offset) of its tensors.
    device : the tensors, or the bytes that come back, as long as a copy goes on; of a value that stays, as long as it is away.
    """

    host: torch.Tensor | None
    fake: bool
    parts: list[tuple[torch.dtype, torch.Size, tuple[int, ...], int]]
    size: int
    where: torch.device
    device: Any
    left: Event | None = None
    there: Event | None = None


class Away:
    """The values of one step that are on the host. A program calls it.

    size : bytes of the block that the step needs. pool : which gives it. most : as in `HostPool.reserve`.
    """

    def __init__(self, size: int, pool: HostPool, most: int | None = None):
        self._size, self._pool, self._most = size, pool, most
        self._copies: dict[int, _Copy] = {}
        self._block: Block | None = None
        self._last: Event | None = None  # the last copy out of the block that was asked for
        self._process = os.getpid()

    def send(self, value: int, offset: int, size: int, again: bool, *tensors: Any) -> None:
        """Begin to copy a value to the host.

        tensors : those that lie in its storage, of `size` bytes. offset : of the copy in the step's block.
        again : another backward may need what the host has there now, so the value stays. A gradient that is a sum of parts
        stays too: the program may have its parts alone. So does a value that is not laid out as planned, and so do all values
        while a CUDA graph is captured.
        """
        t = tensors[0]
        if not isinstance(t, torch.Tensor):
            self._copies[value] = _Copy(None, False, [], 0, torch.device("cpu"), tensors)
            return
        parts = [(x.dtype, x.shape, x.stride(), int(x.storage_offset())) for x in tensors]
        copy = self._copies[value] = _Copy(None, is_fake(t), parts, size, t.device, tensors)
        if (
            copy.fake
            or again
            or {(x.untyped_storage()._cdata, x.untyped_storage().nbytes()) for x in tensors}
            != {(t.untyped_storage()._cdata, size)}
        ):
            return
        if t.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return
        if self._block is None:
            self._block = self._pool.take(self._size, self._most)
        if self._block is not None:
            copy.host = self._block.memory[offset : offset + size]
            whole = torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())
            copy.left = engine_of(t.device).out(whole, copy.host)

    def gone(self, value: int) -> None:
        """Let the memory of a value go once its copy has ended."""
        copy = self._copies[value]
        if copy.left is not None and copy.there is None:
            copy.left.wait()
        if copy.left is not None or copy.fake:
            copy.device = ()

    def fetch(self, value: int, again: bool) -> list[torch.Tensor]:
        """New tensors for a value, into which its copy comes. again : another backward will fetch it once more."""
        copy = self._copies[value]
        if copy.there is not None:  # an earlier backward was left unfinished
            copy.there.synchronize()
        elif len(copy.device):  # it stayed
            return [t.clone() if again and isinstance(t, torch.Tensor) else t for t in copy.device]
        whole = torch.empty(copy.size, dtype=torch.uint8, device=copy.where)
        if copy.host is not None:
            assert copy.left is not None
            copy.there, copy.device = engine_of(copy.where).back(copy.host, whole, copy.left), whole
            self._last = copy.there
        return [whole.view(dtype).as_strided(shape, strides, at) for dtype, shape, strides, at in copy.parts]

    def arrived(self, value: int, again: bool) -> None:
        """Let later ops run after the copy has come. again : another backward will fetch it once more."""
        copy = self._copies[value]
        if copy.there is not None:
            copy.there.wait()
            copy.there, copy.device = None, ()
        if not again:
            del self._copies[value]
            if not self._copies:
                self._let_go()

    def settle(self) -> None:
        """Let later ops run after all copies to the device, where hooks of the user will be shown what forward saves."""
        for copy in self._copies.values() if saved_tensors_hooks_are_set() else ():
            if copy.there is not None:
                copy.there.wait()

    def _let_go(self) -> None:
        if self._block is not None:
            self._pool.give(Block(self._block.memory, self._last))
        self._block = None

    def __del__(self) -> None:
        if self._process != os.getpid():  # after a fork, its copies are the parent's
            return
        copies = [*self._copies.values()]  # the step was given up: what a copy uses must outlive it
        if self._block is not None:
            give = functools.partial(self._pool.give, Block(self._block.memory, self._last))
            once_over([e for copy in copies for e in (copy.left, copy.there)], copies, give)
