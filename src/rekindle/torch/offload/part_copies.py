"""Copies to the host of what a call of a part saves for backward, whatever runs the part: a plan, torch.compile, or its forward
once more.

Autograd hands over each tensor that the part's forward saves. Storages for which the plan has room on the host are copied out.
They leave the device when the forward of the next part has ended, come back from when the backward of the next part begins, and
the ops that read them wait for that. As in `away`, nothing relies on how long a copy takes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from ...parts.plan import Offloaded
from ...saying import notices
from ..private import is_fake, saved_tensors_hooks_are_set
from ..tensors import tree
from ..tensors.op_tensors import storage_of
from .away import Block, Event, HostPool, engine_of, once_over


class CallOrder:
    """The calls of a model's parts, in the order in which their forwards end, in each thread."""

    def __init__(self) -> None:
        self._threads = threading.local()

    def ended(self, copies: SavedCopies | None, result: Any) -> None:
        """Let what the call before this one saves leave the device, and come back when the backward of this one begins.

        copies : of what this call saves; None: it copies nothing. result : of the call.
        """
        before: Callable[[], SavedCopies | None] = getattr(self._threads, "last", lambda: None)
        self._threads.last = (lambda: None) if copies is None else weakref.ref(copies)  # autograd's graph holds it
        if (last := before()) is None:
            return
        last.leave()
        node = next((t.grad_fn for t in tree.tensors_in(result) if t.grad_fn is not None), None)
        if node is not None:
            node.register_prehook(lambda _: None if (last := before()) is None else last.fetch())


@dataclass(frozen=True)
class PartCopies:
    """Runs the calls of one part, and copies what they save.

    offloaded : what is copied; None: nothing, but the part before may copy. order : of the model's calls. pool : of the host's
    memory. most : as in `HostPool.reserve`.
    """

    offloaded: Offloaded | None
    order: CallOrder
    pool: HostPool
    most: int | None = None

    def run(self, module: nn.Module, arguments: Any, call: Callable[[], Any]) -> Any:
        """The result of a call of the part with these arguments. call : makes it."""
        if self.offloaded is None or _is_watched():
            result = call()
            self.order.ended(None, result)
            return result
        given = tree.tensors_in(arguments)
        own = [*module.parameters(), *module.buffers(), *(t for t in given if isinstance(t, nn.Parameter))]
        kind = "cuda" if any(t.is_cuda for t in (*own, *given)) else "cpu"
        stay = storages_of(own)
        stay |= storages_of(given[i] for i in self.offloaded.stay if i < len(given))
        copies = SavedCopies(self.offloaded.bytes, self.pool, self.most, stay, kind)
        with saved_tensors_hooks(copies.pack, copies.unpack):
            result = call()
        self.order.ended(copies, result)
        return result


def _is_watched() -> bool:
    """Whether hooks of the user see what is saved, which ours would hide from them."""
    if saved_tensors_hooks_are_set():
        notices.warn("a call inside saved_tensors_hooks: values stay on the device that a plan copies to the host")
        return True
    return False


def storages_of(tensors: Iterable[torch.Tensor]) -> set[int]:
    """The identities of the storages of tensors, as long as these are alive."""
    return {s._cdata for t in tensors if (s := storage_of(t)) is not None}


def may_leave(t: torch.Tensor, kind: str) -> bool:
    """Whether a tensor is plain memory of a device of this kind, which can be copied as bytes."""
    return (
        type(t) in (torch.Tensor, nn.Parameter) and t.layout is torch.strided and t.device.type == kind in ("cuda", "cpu")
        and not (is_fake(t) or t.is_conj() or t.is_neg()) and t.untyped_storage().nbytes() > 0
    )  # fmt: skip


@dataclass
class SavedSizes:
    """Notes the storages that a forward saves, in the order in which it saves them. stay : storages that are not counted.

    kind : type of the device. found : of each, (bytes, storage).
    """

    stay: Collection[int]
    kind: str = "cpu"
    found: list[tuple[int, int]] = field(default_factory=list)
    _seen: dict[int, torch.Tensor] = field(default_factory=dict)

    def pack(self, t: torch.Tensor) -> torch.Tensor:
        t = t.detach()
        if may_leave(t, self.kind) and (key := t.untyped_storage()._cdata) not in self._seen and key not in self.stay:
            self._seen[key] = t
            self.found.append((t.untyped_storage().nbytes(), key))
        return t

    def unpack(self, t: torch.Tensor) -> torch.Tensor:
        return t


@dataclass(eq=False)
class _Copy:
    """One storage of which the host has a copy.

    left, there : the ends of the copies out and back; None: not begun. saved : tensors in it, until it leaves the device; weak,
    since autograd's graph holds them.
    source : its bytes until they have left, or backward reads them first: the graph may be dropped while they are copied.
    whole : its bytes, from when they come back until each tensor was handed over once.
    """

    host: torch.Tensor
    left: Event
    saved: list[weakref.ref[Saved]]
    source: torch.Tensor | None
    stream: Any  # on which it was saved; memory is freed for later ops of this one
    count: int = 0
    there: Event | None = None
    whole: torch.Tensor | None = None
    handed_over: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Saved:
    """A tensor that autograd has saved. copy : of its storage; None: it stays. tensor : itself, as long as it is there."""

    owner: SavedCopies
    copy: _Copy | None
    tensor: torch.Tensor | None
    version: int
    look: Look
    number: int
    is_changed: bool = False


class Look(NamedTuple):
    """How a tensor lies in its storage."""

    dtype: torch.dtype
    offset: int
    shape: torch.Size
    strides: tuple[int, ...]


class SavedCopies:
    """The tensors that one call of a part saves; as many are copied to the host as there is room for.

    room : bytes. pool, most : as of `PartCopies`. stay : storages that others hold in any case. kind : type of the device.
    """

    def __init__(
        self, room: int, pool: HostPool, most: int | None = None, stay: Collection[int] = (), kind: str = "cpu"
    ):
        self._room, self._pool, self._most, self._stay, self._kind = room, pool, most, stay, kind
        self._copies: dict[int, _Copy] = {}  # storage -> its copy, which holds it while the part's forward runs
        self._used = 0
        self._block: Block | None = None
        self._device = torch.device("cpu")
        self._last: Event | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()

    def pack(self, t: torch.Tensor) -> Saved:
        """Begin to copy a tensor that autograd saves, with its storage."""
        t = t.detach()
        copy = self._copy(t) if may_leave(t, self._kind) else None
        look = Look(t.dtype, int(t.storage_offset()), t.shape, t.stride()) if copy is not None else _NO_LOOK
        made = Saved(self, copy, t, t._version, look, 0 if copy is None else copy.count)
        if copy is not None:
            copy.count += 1
            copy.saved.append(weakref.ref(made))
        return made

    def unpack(self, saved: Saved) -> torch.Tensor:
        """The tensor again, once its bytes are there."""
        if saved.tensor is not None:
            saved.is_changed |= saved.tensor._version != saved.version
        if saved.is_changed:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor "
                f"{list(saved.look.shape)} that a part saves; a step without a plan says which"
            )
        copy, look = saved.copy, saved.look
        if saved.tensor is not None:
            if copy is not None:
                self._let_go(copy)
            return saved.tensor
        assert copy is not None
        with _on(copy.stream):
            self._fetch(copy)
            assert copy.there is not None
            assert copy.whole is not None
            made = torch.empty(0, dtype=look.dtype, device=self._device)
            made.set_(copy.whole.untyped_storage(), look.offset, look.shape, look.strides)
        copy.there.wait()
        if copy.stream is not None and (now := torch.cuda.current_stream(self._device)) != copy.stream:
            made.record_stream(now)  # the op that reads it runs on another stream
        copy.handed_over.add(saved.number)
        if len(copy.handed_over) == copy.count:
            copy.whole, copy.there = None, None
            copy.handed_over.clear()
        return made

    def leave(self) -> None:
        """Let the memory go of what is copied, once it is."""
        if self._process != os.getpid():  # after a fork, nobody here ends its copies
            return
        for copy in self._copies.values():
            self._let_go(copy)
            for saved in [x for at in copy.saved if (x := at()) is not None]:
                saved.is_changed = saved.tensor is not None and saved.tensor._version != saved.version
                saved.tensor = None
            copy.saved = []

    def fetch(self) -> None:
        """Begin to copy back what has left."""
        for copy in self._copies.values():
            if not copy.saved:
                with _on(copy.stream):
                    self._fetch(copy)

    def _copy(self, t: torch.Tensor) -> _Copy | None:
        """The copy of the tensor's storage; None: it stays."""
        storage = t.untyped_storage()
        if (key := storage._cdata) in self._copies or key in self._stay:
            return self._copies.get(key)
        size = storage.nbytes()
        if self._used + size > self._room or t.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        if self._block is None:
            self._device = t.device
            self._block = self._pool.take(self._room, self._most)
            if self._block is None:
                self._room = 0
                return None
        if t.device != self._device:
            return None
        host = self._block.memory[self._used : self._used + size]
        whole = torch.empty(0, dtype=torch.uint8, device=t.device).set_(storage)
        self._used += size
        stream = torch.cuda.current_stream(t.device) if t.is_cuda else None
        made = self._copies[key] = _Copy(host, engine_of(t.device).out(whole, host), [], whole, stream)
        return made

    def _let_go(self, copy: _Copy) -> None:
        """Let the memory that is copied go, once it is."""
        if copy.source is not None:
            with _on(copy.stream):
                copy.left.wait()
            copy.source = None

    def _fetch(self, copy: _Copy) -> None:
        with self._lock:  # autograd has a thread for each device
            if copy.whole is None:
                copy.whole = torch.empty(copy.host.nbytes, dtype=torch.uint8, device=self._device)
                self._last = copy.there = engine_of(self._device).back(copy.host, copy.whole, copy.left)

    def __del__(self) -> None:
        if self._process != os.getpid() or self._block is None:  # after a fork, its copies are the parent's
            return
        copies = [*self._copies.values()]  # what a copy uses must outlive it
        left = [copy.left for copy in copies if copy.source is not None or self._last is None]
        give = functools.partial(self._pool.give, Block(self._block.memory, self._last))
        once_over([*left, *(copy.there for copy in copies)], copies, give)


def _on(stream: Any) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


_NO_LOOK = Look(torch.uint8, 0, torch.Size(), ())
