"""A part of an optimizer's state: copied to the host and back as one block."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from ..operators.memory_order import elements_spanned
from ..private import is_fake
from . import away

ALIGNED_BYTES = 512  # at a multiple of which a tensor begins in a block, as CUDA's own blocks do
# Of one parameter's state, for which a block has room to align them. A block that is too small is replaced.
TENSORS_EACH = 8


class Coming(NamedTuple):
    """A part that is being copied to the device. whole : the block there. there : the end of the copy."""

    whole: torch.Tensor
    there: away.Event


class Entry(NamedTuple):
    """A tensor in the state of a parameter."""

    parameter: nn.Parameter
    name: str
    tensor: torch.Tensor


class Part:
    """The state of some parameters of one optimizer, on one device.

    On the host its tensors lie in `block`; on the device they lie at the same places of a copy of it.

    size : bytes that the state may take, for which the host holds the block from now on.
    views : whether tensors that are a part of their memory are moved too; else only those that have it for themselves.
    """

    def __init__(self, optimizer: Optimizer, params: list[nn.Parameter], size: int, views: bool):
        self.params, self._optimizer, self._views = params, optimizer, views
        self.block = away.host_block(_aligned(size), self.device)
        self._bytes = 0  # of the block, that are in use
        self._whole: torch.Tensor | None = None  # the copy of the block on the device
        self._leaving: list[tuple[Entry, torch.Tensor]] = []  # entries, and what takes their place once they have left
        self._there: away.Event | None = None  # the end of the last copy from the host
        self._left: away.Event | None = None  # and to it

    @property
    def device(self) -> torch.device:
        """The device of the parameters, which may move with their model."""
        return self.params[0].device

    def fetch(self) -> Coming | None:
        """Begin to copy the part to the device. None: nothing of it is away."""
        if not any(_is_in(e.tensor, self.block) for e in self._entries()):
            return None
        whole = torch.empty(self._bytes, dtype=torch.uint8, device=self.device)
        return Coming(whole, away.engine_of(self.device).back(self.block[: self._bytes], whole, None))

    def arrived(self, coming: Coming | None) -> None:
        """Let later ops find the state on the device."""
        if coming is None:
            return
        coming.there.wait()
        self._whole, self._there = coming
        self._put([(e, _moved(e, self.block, coming.whole)) for e in self._entries() if _is_in(e.tensor, self.block)])

    def send(self) -> list[away.Event]:
        """Begin to copy the part to the host: the ends of the copies. The state stays what is on the device until `gone`."""
        engine = away.engine_of(self.device)
        found = [e for e in self._entries() if e.tensor.device == self.device and not _is_in(e.tensor, self.block)]
        whole = self._whole
        if whole is not None and all(_is_in(e.tensor, whole) for e in found):
            self._leaving = [(e, _moved(e, whole, self.block)) for e in found]
            events = [engine.out(whole, self.block[: self._bytes])]
        else:
            self._leaving = self._placed(list(self._movable(found)))
            events = [engine.out(_memory(e.tensor), _memory(to)) for e, to in self._leaving]
        self._left = events[-1] if events else self._left
        return events

    def gone(self, leaving: Sequence[away.Event]) -> None:
        """Let the memory on the device go once the copies have ended."""
        for event in leaving:
            event.wait()
        self._put(self._leaving)
        self._leaving, self._whole = [], None

    def settle(self) -> None:
        """Return once the host has all that was sent to it."""
        if self._left is not None:
            self._left.synchronize()

    def bring_back(self) -> None:
        """The state is on the device, each tensor by itself, and nothing needs the host's block any more."""
        self.arrived(self.fetch())
        if self._there is not None:
            self._there.synchronize()
        self._put([(e, e.tensor.clone()) for e in self._entries() if _is_in(e.tensor, self._whole)])
        self._whole = None

    def _entries(self) -> Iterator[Entry]:
        """The tensors of the state that a copy can move."""
        state = self._optimizer.state
        for p in self.params:
            for name, t in list(state[p].items()) if p in state else ():
                if isinstance(t, torch.Tensor) and is_plain(t) and t.ndim:
                    yield Entry(p, name, t)

    def _put(self, moved: Sequence[tuple[Entry, torch.Tensor]]) -> None:
        """Put tensors in the place of others in the state."""
        for e, t in moved:
            self._optimizer.state[e.parameter][e.name] = t

    def _placed(self, found: Sequence[Entry]) -> list[tuple[Entry, torch.Tensor]]:
        """Entries, each with a tensor in the host's block, in a new block if they have grown."""
        sizes = [_aligned(elements_spanned(e.tensor) * e.tensor.element_size()) for e in found]
        self._bytes = sum(sizes)
        if self._bytes > self.block.nbytes:
            if self._there is not None:
                self._there.synchronize()  # the old block may go
            self.block = away.host_block(self._bytes, self.device)
        starts = itertools.accumulate(sizes, initial=0)
        return [(e, _at(self.block, start, e.tensor)) for e, start in zip(found, starts, strict=False)]

    def _movable(self, found: Sequence[Entry]) -> Iterator[Entry]:
        """Entries that share no element with one another, a parameter or a gradient."""
        own = [t for p in self.params for t in (p, p.grad) if t is not None and is_plain(t)]
        spans = sorted((*_span(t), i) for i, t in enumerate([*(e.tensor for e in found), *own]))
        sharing, last = set[int](), (0, 0, 0, -1)
        for span in spans:
            if span[0] == last[0] and span[1] < last[2]:
                sharing |= {span[3], last[3]}
            if span[0] != last[0] or span[2] > last[2]:
                last = span
        for i, e in enumerate(found):
            if i not in sharing and (self._views or e.tensor.untyped_storage().nbytes() == e.tensor.nbytes):
                yield e


def bytes_in_block(size: int) -> int:
    """Bytes of a block that the state of one parameter, of `size` bytes, takes at most."""
    return size + ALIGNED_BYTES * TENSORS_EACH if size else 0


def is_plain(t: torch.Tensor) -> bool:
    """Whether a copy of a tensor's bytes is a copy of the tensor."""
    plain = type(t) in (torch.Tensor, nn.Parameter) and t.layout == torch.strided
    return plain and not (is_fake(t) or t.is_conj() or t.is_neg())


def _is_in(t: torch.Tensor, block: torch.Tensor | None) -> bool:
    return block is not None and t.untyped_storage()._cdata == block.untyped_storage()._cdata


def _moved(e: Entry, source: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    """The tensor at the entry's place in another copy of a block."""
    return _at(to, _span(e.tensor)[1] - _span(source)[1], e.tensor)


def _at(block: torch.Tensor, start: int, like: torch.Tensor) -> torch.Tensor:
    """A tensor at a place of a block."""
    return block[start:].view(like.dtype).as_strided(like.shape, like.stride())


def _span(t: torch.Tensor) -> tuple[int, int, int]:
    """(a tensor's storage, its first byte there, the byte after its last)."""
    begin = int(t.storage_offset()) * t.element_size()
    return t.untyped_storage()._cdata, begin, begin + elements_spanned(t) * t.element_size()


def _memory(t: torch.Tensor) -> torch.Tensor:
    """The bytes from a tensor's first to its last."""
    return t.as_strided((elements_spanned(t),), (1,)).view(torch.uint8)


def _aligned(size: int) -> int:
    return max(1, -(-size // ALIGNED_BYTES)) * ALIGNED_BYTES
