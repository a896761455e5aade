"""A part of an optimizer's state: copied to the host and back as one block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from ..operators.memory_order import elements_spanned
from ..private import is_fake
from . import away

ALIGNED_BYTES = 512  # at a multiple of which a tensor begins in a block, as CUDA's own blocks do
TENSORS_EACH = (
    8  # of one parameter's state, for which a block has room to align them; a block that is too small is replaced
)


class Slot(NamedTuple):
    """The place of one tensor of the state in its part's block. at : bytes before it."""

    parameter: nn.Parameter
    name: str
    at: int
    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]

    def is_same(self, other: Slot) -> bool:
        return self.parameter is other.parameter and self[1:] == other[1:]

    def in_block(self, block: torch.Tensor) -> torch.Tensor:
        """The tensor that lies here in a block."""
        return block[self.at :].view(self.dtype).as_strided(self.shape, self.strides)


class Coming(NamedTuple):
    """A part that is being copied to the device. whole : the block there. there : the end of the copy."""

    whole: torch.Tensor
    there: away.Event


class Part:
    """The state of some parameters of one optimizer, on one device.

    size : bytes that the state may take, for which the host holds a block from now on.
    staying : bytes of the state that stay on the device, as they were last looked at: no plain tensors, or a tensor that shares
    memory with another.
    """

    def __init__(self, optimizer: Optimizer, params: list[nn.Parameter], size: int):
        self.params, self._optimizer = params, optimizer
        self.block, self.staying = away.host_block(_aligned(size), self.device), 0
        self._slots: list[Slot] = []  # of the tensors that were on the host last
        self._on_host: list[torch.Tensor] = []
        self._on_device: list[torch.Tensor] = []  # the same tensors while they are there
        self._whole: torch.Tensor | None = None  # the block in which they lie there; None: they lie by themselves
        self._bytes = 0  # of all of them in a block
        self._left: away.Event | None = None  # the end of the last copy to the host

    @property
    def device(self) -> torch.device:
        """The device of the parameters, which may move with their model."""
        return self.params[0].device

    def fetch(self) -> Coming | None:
        """Begin to copy the part to the device. None: nothing of it is away."""
        if self._left is None or not any(map(self._is_at, self._slots, self._on_host)):
            return None
        whole = torch.empty(self._bytes, dtype=torch.uint8, device=self.device)
        return Coming(whole, away.engine_of(self.device).back(self.block[: self._bytes], whole, self._left))

    def arrived(self, coming: Coming | None) -> None:
        """Let later ops find the state on the device."""
        if coming is None:
            return
        coming.there.wait()
        self._whole, self._on_device = coming.whole, [s.in_block(coming.whole) for s in self._slots]
        self._put(self._on_host, self._on_device)

    def send(self) -> list[away.Event]:
        """Begin to copy the part to the host: the ends of the copies. The state stays what is on the device until `gone`."""
        engine = away.engine_of(self.device)
        found = list(self._movable())
        here = {id(t): i for i, t in enumerate(self._on_device)}
        if not found:
            return []
        if self._whole is not None and [here.get(id(t)) for *_, t in found] == list(range(len(self._slots))):
            events = [engine.out(self._whole, self.block[: self._bytes])]
        else:
            self._place(found)
            self._whole, self._on_device = None, [t for *_, t in found]
            events = [engine.out(_memory(t), _memory(to)) for t, to in zip(self._on_device, self._on_host, strict=True)]
        self._left = events[-1]
        return events

    def gone(self, leaving: Sequence[away.Event]) -> None:
        """Let the memory on the device go once the copies have ended."""
        for event in leaving:
            event.wait()
        if leaving:
            self._put(self._on_device, self._on_host)
        self._on_device, self._whole = [], None

    def settle(self) -> None:
        """Return once the host has all of the state: anybody may read it there."""
        if self._left is not None:
            self._left.synchronize()

    def bring_back(self) -> None:
        """The state is on the device, each tensor by itself."""
        self.arrived(self.fetch())
        self._put(self._on_device, [t.clone() for t in self._on_device])
        self._on_device, self._whole = [], None

    def _is_at(self, slot: Slot, tensor: torch.Tensor) -> bool:
        """Whether the tensor is the slot's entry in the state now."""
        state = self._optimizer.state
        return slot.parameter in state and state[slot.parameter].get(slot.name) is tensor

    def _put(self, old: list[torch.Tensor], new: list[torch.Tensor]) -> None:
        """Put new tensors where old ones are in the state. What somebody else has put there stays."""
        for slot, a, b in zip(self._slots, old, new, strict=True) if old else ():
            if self._is_at(slot, a):
                self._optimizer.state[slot.parameter][slot.name] = b

    def _place(self, found: Sequence[tuple[nn.Parameter, str, torch.Tensor]]) -> None:
        """Give each tensor its place in the host's block, in a new block if they have grown."""
        slots, at = [], 0
        for p, name, t in found:
            slots.append(Slot(p, name, at, t.dtype, t.shape, t.stride()))
            at += _aligned(elements_spanned(t) * t.element_size())
        if len(slots) == len(self._slots) and all(map(Slot.is_same, slots, self._slots)):
            return
        if at > self.block.nbytes:
            self.block = away.host_block(at, self.device)
        self._slots, self._on_host, self._bytes = slots, [s.in_block(self.block) for s in slots], at

    def _movable(self) -> Iterator[tuple[nn.Parameter, str, torch.Tensor]]:
        """(parameter, name, tensor) of the state on the device: plain tensors, of which no two share an element."""
        ours, away_now = {id(t) for t in self._on_device}, {id(t) for t in self._on_host}
        taken: dict[int, list[tuple[int, int]]] = {}
        self.staying = 0
        for t in (t for p in self.params for t in (p, p.grad) if t is not None and is_plain(t)):
            taken.setdefault(t.untyped_storage()._cdata, []).append(_span(t))
        for p in self.params:
            for name, t in self._optimizer.state[p].items() if p in self._optimizer.state else ():
                if id(t) in away_now or not isinstance(t, torch.Tensor) or not t.ndim or t.device != p.device:
                    continue
                if id(t) not in ours:
                    begin, end = _span(t) if is_plain(t) else (0, 0)
                    others = taken.setdefault(t.untyped_storage()._cdata, []) if end else []
                    if not end or any(begin < e and b < end for b, e in others):
                        self.staying += t.nbytes
                        continue
                    others.append((begin, end))
                yield p, name, t


def bytes_in_block(size: int) -> int:
    """Bytes of a block that the state of one parameter, of `size` bytes, takes at most."""
    return size + ALIGNED_BYTES * TENSORS_EACH if size else 0


def is_plain(t: torch.Tensor) -> bool:
    return type(t) in (torch.Tensor, nn.Parameter) and t.layout == torch.strided and not is_fake(t)


def _span(t: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor in its storage, and the byte after its last."""
    begin = int(t.storage_offset()) * t.element_size()
    return begin, begin + elements_spanned(t) * t.element_size()


def _memory(t: torch.Tensor) -> torch.Tensor:
    """The bytes from a tensor's first to its last."""
    return t.as_strided((elements_spanned(t),), (1,)).view(torch.uint8)


def _aligned(size: int) -> int:
    return max(1, -(-size // ALIGNED_BYTES)) * ALIGNED_BYTES
