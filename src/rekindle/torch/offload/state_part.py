"""A part of an optimizer's state: copied to the host and back as one block."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from ...model.arena import ALIGNMENT
from ..costs.resident import tensors_of_state
from ..operators.memory_order import elements_spanned
from ..operators.node_tensors import span
from ..private import users_of_memory
from . import away
from .part_copies import may_leave

# Of one parameter's state, for which a block has room to align them; a block that is too small is replaced.
TENSORS_EACH = 8


class Part:
    """The state of some parameters of one optimizer, on one device.

    On the host its tensors lie in `block`, each with a storage of its own, so that whoever saves or copies one takes its bytes
    alone. On the device they lie at the same places of a copy of the block.

    size : bytes that the state may take, for which the host holds the block from now on.
    own : whether the optimizer is PyTorch's own: its state is where its parameters are, and nothing else has views of it.
    """

    def __init__(self, optimizer: Optimizer, params: list[nn.Parameter], size: int, own: bool):
        self.params, self._optimizer, self._own = params, optimizer, own
        self.block = away.host_block(_aligned(size), self.device)
        self._bytes = 0  # of the block, that are in use
        self._whole: torch.Tensor | None = None  # the copy of the block on the device
        self._there: away.Event | None = None  # the end of the last copy from the host
        self._leaving: list[tuple[torch.Tensor, torch.Tensor]] = []  # tensors, and their places in the block
        self._left: list[away.Event] = []  # the ends of the last copies to the host

    @property
    def device(self) -> torch.device:
        """The device of the parameters, which may move with their model."""
        return self.params[0].device

    @property
    def is_there(self) -> bool:
        """Whether the part is on the device, or on its way."""
        return self._whole is not None or bool(self._leaving)

    def on_host(self) -> Iterator[torch.Tensor]:
        """The tensors of the state that lie in the block."""
        return (t for t in self._tensors() if self._is_away(t))

    def fetch(self) -> None:
        """Begin to copy the part to the device, if it is away."""
        if any(True for _ in self.on_host()):
            self._whole = torch.empty(self._bytes, dtype=torch.uint8, device=self.device)
            self._there = away.engine_of(self.device).back(self.block[: self._bytes], self._whole, None)

    def arrived(self) -> None:
        """Let later ops find the state on the device."""
        if self._there is not None:
            self._there.wait()
        for t in self._tensors():
            if self._is_away(t):
                assert self._whole is not None
                t.data = self._whole[_offset(t, self.block) :].view(t.dtype).as_strided(t.shape, t.stride())
            elif self._own and t.device != self.device:  # somebody has put it into the state
                t.data = t.to(self.device)

    def send(self) -> None:
        """Begin to copy the part to the host. The state stays what is on the device until it is `gone`."""
        engine, whole = away.engine_of(self.device), self._whole
        found = [t for t in self._tensors() if t.device == self.device and not self._is_away(t)]
        if not found:  # it has no state yet, or an interrupted step has left it on its way
            self._leaving, self._left = [], []
        elif self._own and whole is not None and all(_is_in(t, whole) for t in found):
            host = self.block.numpy()
            self._leaving = [(t, _placed_at(host, _offset(t, whole), t)) for t in found]
            self._left = [engine.out(whole, self.block[: self._bytes])]
        else:
            self._leaving = self._placed(list(self._movable(found)))
            self._left = [engine.out(_memory(t), _memory(to)) for t, to in self._leaving]

    def gone(self) -> None:
        """Let the memory on the device go once the copies have ended."""
        for event in (self._there, *self._left):
            if event is not None:
                event.wait()
        for t, to in self._leaving:
            t.data = to
        self._leaving, self._whole = [], None

    def settle(self) -> None:
        """Return once no copy is on its way."""
        for event in (self._there, *self._left):
            if event is not None:
                event.synchronize()
        self._there, self._left = None, []

    def bring_back(self) -> None:
        """The state is on the device, each tensor by itself, and nothing needs the host's block any more."""
        self.settle()
        self.fetch()
        self.arrived()
        self.settle()
        for t in self._tensors():
            if _is_in(t, self._whole):
                t.data = t.clone()
        self._leaving, self._whole = [], None

    def _tensors(self) -> Iterator[torch.Tensor]:
        """The tensors of the state that a copy can move."""
        state = self._optimizer.state
        for p in self.params:
            for t in state[p].values() if p in state else ():
                if isinstance(t, torch.Tensor) and is_memory(t) and t.ndim and t.numel() and not t.requires_grad:
                    yield t

    def _is_away(self, t: torch.Tensor) -> bool:
        return t.device == self.block.device and 0 <= _offset(t, self.block) < self.block.nbytes

    def _placed(self, found: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Tensors, each with a place in the host's block, in a new block if they have grown."""
        sizes = [_aligned(elements_spanned(t) * t.element_size()) for t in found]
        self._bytes = sum(sizes)
        if self._bytes > self.block.nbytes:
            self.settle()  # the old block may go
            self.block = away.host_block(self._bytes, self.device)
        starts, host = itertools.accumulate(sizes, initial=0), self.block.numpy()
        return [(t, _placed_at(host, start, t)) for t, start in zip(found, starts, strict=False)]

    def _movable(self, found: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Those tensors whose memory nothing but the state uses, and of which no two share an element."""
        state = [t for t in tensors_of_state(self._optimizer.state.values()) if is_memory(t)]
        own = [t for p in self.params for t in (p, p.grad) if t is not None and is_memory(t)]
        sharing, last = set[int](), (0, 0, 0, -1)
        for use in sorted((t.untyped_storage()._cdata, *span(t), id(t)) for t in (*state, *own)):
            if use[0] == last[0] and use[1] < last[2]:
                sharing |= {use[3], last[3]}
            if use[0] != last[0] or use[2] > last[2]:
                last = use
        users = Counter(t.untyped_storage()._cdata for t in {id(t): t for t in state}.values())
        for t in found:
            known = users[t.untyped_storage()._cdata] + _is_in(t, self._whole)
            if id(t) not in sharing and users_of_memory(t) == known:
                yield t


def bytes_in_block(size: int) -> int:
    """Bytes of a block that the state of one parameter, of `size` bytes, takes at most."""
    return size + ALIGNMENT * TENSORS_EACH if size else 0


def is_memory(t: torch.Tensor) -> bool:
    """Whether a copy of a tensor's bytes is a copy of the tensor, on a device that copies can reach."""
    return may_leave(t, t.device.type)


def _is_in(t: torch.Tensor, block: torch.Tensor | None) -> bool:
    return block is not None and t.untyped_storage()._cdata == block.untyped_storage()._cdata


def _offset(t: torch.Tensor, block: torch.Tensor) -> int:
    return t.data_ptr() - block.data_ptr()


def _placed_at(host: np.ndarray, start: int, like: torch.Tensor) -> torch.Tensor:
    """A tensor with a storage of its own at a place of a block, which it keeps alive."""
    own = host[start : start + elements_spanned(like) * like.element_size()]
    return torch.from_numpy(own).view(like.dtype).as_strided(like.shape, like.stride())


def _memory(t: torch.Tensor) -> torch.Tensor:
    """The bytes from a tensor's first to its last."""
    return t.as_strided((elements_spanned(t),), (1,)).view(torch.uint8)


def _aligned(size: int) -> int:
    return max(1, -(-size // ALIGNMENT)) * ALIGNMENT
