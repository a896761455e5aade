"""Tensors as they were: noted, compared and put back, with the memory that they lie in.

Changes are found by comparison, since code writes in ways that no operator tells: through NumPy, by `t.data = …`, by resizing a
storage, or in a kernel whose schema does not say so.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .private import disable_function_overrides, disable_modes, is_fake, set_version_counter


@dataclass(frozen=True)
class TensorStateSettings:
    """words_at_once : 8-byte words of a GPU's memory that are mixed at once for a fingerprint, so that it takes little memory
    itself (a guess)."""

    words_at_once: int = 1 << 21


SETTINGS = TensorStateSettings()
_MULTIPLIERS = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)  # of splitmix64, as signed numbers


class Tensors:
    """Context manager: the tensors as they are when it is entered.

    named : (name for messages, tensor). small : (name, tensor) of tensors whose content is kept only up to `bytes_most` bytes.
    Contents are copied to the CPU, so that a GPU holds nothing twice; a context inside of another one takes over the copies
    that still hold.
    """

    def __init__(
        self, named: Iterable[tuple[str, torch.Tensor]], small: Iterable[tuple[str, torch.Tensor]], bytes_most: int
    ) -> None:
        self._tensors: dict[int, _Tensor] = {}
        self.memory: dict[int, _Memory] = {}  # by the address of the storage
        with _plainly():
            for most, some in ((None, named), (bytes_most, small)):
                for name, t in some:
                    self._add(name, t, most)

    def _add(self, name: str, t: torch.Tensor, bytes_most: int | None) -> None:
        if id(t) in self._tensors:
            return
        self._tensors[id(t)] = _Tensor(name, t)
        for k, inner in _inside(t):
            self._add(f"{name}.{k}", inner, bytes_most)
        if (storage := _storage(t)) is not None and storage._cdata not in self.memory:
            keeps = not t.is_meta and not is_fake(t) and (bytes_most is None or storage.nbytes() <= bytes_most)
            self.memory[storage._cdata] = _Memory(name, storage, keeps)

    def __enter__(self) -> Tensors:
        _active().append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _active().remove(self)

    def differs(self, t: torch.Tensor) -> bool:
        """Whether the tensor was not there, or has another place, shape or content."""
        with _plainly():
            was, storage = self._tensors.get(id(t)), _storage(t)
            memory = None if storage is None else self.memory.get(storage._cdata)
            moved = was is None or was.moved() or any(self.differs(inner) for _, inner in _inside(t))
            return moved or memory is not None and not memory.same()

    def changed(self) -> bool:
        """Whether any of the tensors differs."""
        return any(self.differs(x.t) for x in self._tensors.values())

    def moved(self) -> bool:
        """Whether any of the tensors has another place or shape."""
        return any(x.moved() for x in self._tensors.values())

    def steps(self) -> Iterator[tuple[str, Any]]:
        """(name, function) of each thing that can be put back: memory first, since gradients must fit their tensors."""
        found: list[_Memory | _Tensor] = [*self.memory.values(), *self._tensors.values()]
        for x in found:
            yield x.name, _plain(x.restore)


class _Memory:
    """A storage: its size, and a copy of its content on the CPU."""

    def __init__(self, name: str, storage: Any, keeps: bool):
        self.name, self.storage, self.size = name, storage, storage.nbytes()
        self._kept: Any = None
        self._mark: Any = (
            None  # the fingerprint of the content, where comparing it would bring a GPU's memory to the CPU
        )
        if not keeps or not self.size:
            return
        bytes_now = _bytes(storage)
        around = next((m for x in reversed(_active()) if (m := x.memory.get(storage._cdata)) is not None), None)
        if around is not None and around._kept is not None and around.same():
            self._kept, self._mark = around._kept, around._mark
        else:
            on_cpu = storage.device.type == "cpu"
            self._kept, self._mark = bytes_now.to("cpu", copy=True), None if on_cpu else fingerprint(bytes_now)

    def same(self) -> bool:
        """Whether size and content are the same as at first."""
        if self.storage.nbytes() != self.size:
            return False
        if self._kept is None:
            return True
        now = _bytes(self.storage)
        if self._mark is not None:
            return fingerprint(now) == self._mark
        return all(map(torch.equal, _words(now), _words(self._kept)))

    def restore(self) -> None:
        if self.same():
            return
        if self.storage.nbytes() != self.size:
            lost = self._kept is None and self.storage.device.type != "meta" and self.storage.nbytes() < self.size
            self.storage.resize_(self.size)
            if lost:
                raise RuntimeError(f"its {self.size} bytes were too many to be copied, and forward has freed them")
        if self._kept is not None:
            _bytes(self.storage).copy_(self._kept)


class _Tensor:
    """One tensor: its place in memory, its flags, its gradient, its hooks and its Python attributes."""

    def __init__(self, name: str, t: torch.Tensor):
        self.name, self.t = name, t
        self._place = t.detach()  # keeps the memory alive, too
        self._geometry = _geometry(t)
        self._version = None if t.is_inference() else t._version
        self._is_leaf, self._requires_grad = t.is_leaf, t.requires_grad
        self._grad = t.grad if t.is_leaf else None
        self._hooks = hooks_of(t)
        self._fields, self._inner = None if is_fake(t) else dict(vars(t)), _inside(t)

    def moved(self) -> bool:
        """Whether the tensor lies elsewhere, or has another shape."""
        return _geometry(self.t) != self._geometry

    def restore(self) -> None:
        t = self.t
        if self.moved() or t.layout is not torch.strided:
            t.data = self._place
        for k, inner in self._inner if hasattr(t, "__tensor_flatten__") else ():
            if getattr(t, k) is not inner:
                setattr(t, k, inner)
        if self._is_leaf and not t.is_leaf:
            t.detach_()
        if t.is_leaf and t.requires_grad != self._requires_grad:
            t.requires_grad_(self._requires_grad)
        if t.is_leaf and t.grad is not self._grad:
            t.grad = self._grad
        for attribute, before in self._hooks.items():
            table = getattr(t, attribute)
            if table is not None and not _same(table, before):
                table.clear()
                table.update(before)
        if self._fields is not None and not _same(vars(t), self._fields):
            vars(t).clear()
            vars(t).update(self._fields)
        if self._version is not None and t._version != self._version:
            set_version_counter((t,), (self._version,))  # an autograd graph that saved the tensor finds what it expects


def hooks_of(t: torch.Tensor) -> dict[str, dict[int, Any]]:
    """Copies of the tables of hooks on a tensor, by attribute."""
    return {k: dict(getattr(t, k) or {}) for k in ("_backward_hooks", "_post_accumulate_grad_hooks") if t.is_leaf}


def put_gradients_away(tensors: Iterable[torch.Tensor]) -> None:
    """Take gradients and their hooks (an optimizer that steps in backward, say) off tensors; `_Tensor.restore` undoes it."""
    for t in tensors:
        if t.is_leaf:
            t.grad = None
            for attribute in hooks_of(t):
                (getattr(t, attribute) or {}).clear()


def fingerprint(content: torch.Tensor) -> tuple[int, ...]:
    """Numbers that tell contents of memory apart; two contents have the same ones with probability 2^-64."""
    words, rest = _words(content)
    total = torch.zeros((), dtype=torch.int64, device=content.device)
    keys = torch.arange(1, min(SETTINGS.words_at_once, words.numel()) + 1, device=content.device) * _MULTIPLIERS[0]
    for part in words.split(SETTINGS.words_at_once) if words.numel() else ():
        mixed = part ^ keys[: part.numel()]
        for factor in _MULTIPLIERS:
            mixed.mul_(factor)
            mixed.bitwise_xor_(mixed >> 29)
        total.mul_(_MULTIPLIERS[1]).add_(mixed.sum())
    return int(total), *rest.tolist()


def _same(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    return [*one] == [*other] and all(one[k] is other[k] for k in one)


def _words(content: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(whole words, the bytes after them): words are compared eight times as fast."""
    whole = content.numel() // 8 * 8
    return content[:whole].view(torch.int64), content[whole:]


def _bytes(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))


def _storage(t: torch.Tensor) -> Any:
    """The storage of a tensor that lies in one; None for a sparse tensor, or one that wraps others."""
    if t.layout is not torch.strided or hasattr(t, "__tensor_flatten__"):
        return None
    return t.untyped_storage()


def _geometry(t: torch.Tensor) -> Any:
    storage = _storage(t)
    if storage is None:
        return t.shape, t.dtype, t.layout
    return storage._cdata, t.shape, t.stride(), t.storage_offset(), t.dtype, t.is_conj(), t.is_neg()


def _inside(t: Any) -> Sequence[tuple[str, torch.Tensor]]:
    """(name, tensor) of the tensors that a sparse or wrapping tensor is made of."""
    if hasattr(t, "__tensor_flatten__"):
        names = t.__tensor_flatten__()[0]
        return [(k, getattr(t, k)) for k in names]
    if t.layout is torch.sparse_coo:
        return [("indices", t._indices()), ("values", t._values())]
    rows = {torch.sparse_csr, torch.sparse_bsr}
    if t.layout in rows | {torch.sparse_csc, torch.sparse_bsc}:
        ends = ("crow_indices", "col_indices") if t.layout in rows else ("ccol_indices", "row_indices")
        return [(k, getattr(t, k)()) for k in (*ends, "values")]
    return []


_LOCAL = threading.local()


def _active() -> list[Tensors]:
    """The contexts that this thread is in."""
    if not hasattr(_LOCAL, "active"):
        _LOCAL.active = []
    found: list[Tensors] = _LOCAL.active
    return found


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """Inside, operators run as they are: no mode, and no class of tensors, sees them."""
    with torch.inference_mode(False), torch.no_grad(), disable_modes(), disable_function_overrides():
        yield


def _plain(do: Any) -> Any:
    def run() -> None:
        with _plainly():
            do()

    return run
