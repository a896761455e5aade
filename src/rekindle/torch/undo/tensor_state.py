"""Tensors as they were: noted, compared and put back, with the memory that they lie in.

Changes are found by comparison, since code writes in ways that no operator tells: through NumPy, by `t.data = …`, by resizing a
storage, or in a kernel whose schema does not say so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

from ..private import disable_function_overrides, disable_modes, is_fake, set_version_counter
from ..tensors.objects import put_back
from ..tensors.op_tensors import sparse_parts

# Words of a GPU's memory, of 8 bytes, that a fingerprint mixes at once: it should take little memory itself.
WORDS_AT_ONCE = 1 << 21
_FACTORS = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)  # of splitmix64, as signed numbers
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_AROUND: ContextVar[tuple[Tensors, ...]] = ContextVar("tensors noted by the contexts around", default=())


class Tensors:
    """Tensors as they are when this is made.

    named : (name for messages, tensor, bytes up to which its content is copied; None: all of it).

    Contents are copied to the CPU, so that a GPU holds nothing twice; `as_base` lets others share the copies.
    """

    def __init__(self, named: Iterable[tuple[str, torch.Tensor, int | None]]) -> None:
        self._tensors: dict[int, _Tensor] = {}
        self.memory: dict[int, _Memory] = {}  # by address of the storage
        for x in named:
            self._add(*x)

    def _add(self, name: str, t: torch.Tensor, bytes_most: int | None) -> None:
        if id(t) in self._tensors:
            return
        self._tensors[id(t)] = _Tensor(name, t)
        for k, inner in _inside(t).items():
            self._add(f"{name}.{k}", inner, bytes_most)
        if (storage := _storage(t)) is not None and storage._cdata not in self.memory:
            keeps = not t.is_meta and not is_fake(t) and (bytes_most is None or storage.nbytes() <= bytes_most)
            self.memory[storage._cdata] = _Memory(name, storage, keeps)

    @contextlib.contextmanager
    def as_base(self) -> Iterator[None]:
        """Inside, tensors that are noted anew take over the copies that still hold."""
        token = _AROUND.set((self, *_AROUND.get()))
        try:
            yield
        finally:
            _AROUND.reset(token)

    def without_gradients(self) -> None:
        """Take gradients and their hooks (an optimizer that steps in backward, say) off the tensors."""
        for x in self._tensors.values():
            x.without_gradient()

    def differs(self, t: torch.Tensor) -> bool:
        """Whether the tensor was not there, or has another place, shape or content. To be called inside `plainly`."""
        was, storage = self._tensors.get(id(t)), _storage(t)
        if was is None or was.moved() or storage is not None and not self.memory[storage._cdata].same():
            return True
        return any(map(self.differs, _inside(t).values()))

    def moved(self) -> bool:
        """Whether any of the tensors has another place or shape."""
        return any(x.moved() for x in self._tensors.values())

    def put_back(self, back: Callable[[str, Callable[[], Any]], None]) -> None:
        """Put all back by `back`: memory first, since gradients must fit their tensors."""
        every: list[_Memory | _Tensor] = [*self.memory.values(), *self._tensors.values()]
        for x in every:
            back(x.name, x.put_back)


class _Memory:
    """A storage: its size, and a copy of its content on the CPU. keeps : whether there is a copy."""

    def __init__(self, name: str, storage: Any, keeps: bool):
        self.name, self._storage, self._size = name, storage, storage.nbytes()
        self._copy: Any = None
        self._mark: Any = None  # fingerprint of a GPU's memory, with which it is compared where it lies
        if keeps and self._size:
            around = next((m for x in _AROUND.get() if (m := x.memory.get(storage._cdata)) is not None), None)
            if around is not None and around._copy is not None and around.same():
                self._copy, self._mark = around._copy, around._mark
            else:
                now = _bytes(storage)
                self._copy, self._mark = now.to("cpu", copy=True), None if now.is_cpu else fingerprint(now)

    def same(self) -> bool:
        """Whether size and content are the same as at first."""
        if self._storage.nbytes() != self._size or self._copy is None:
            return self._storage.nbytes() == self._size
        now = _bytes(self._storage)
        if self._mark is not None:
            return fingerprint(now) == self._mark
        return all(map(torch.equal, _words(now), _words(self._copy)))

    def put_back(self) -> None:
        if self.same():
            return
        if (size := self._storage.nbytes()) != self._size:
            self._storage.resize_(self._size)
            if self._copy is None and size < self._size and self._storage.device.type != "meta":
                raise RuntimeError(f"its {self._size} bytes were too many to be copied, and forward has freed them")
        if self._copy is not None:
            _bytes(self._storage).copy_(self._copy)


class _Tensor:
    """One tensor: its place in memory, its flags, its gradient, its hooks and its Python attributes."""

    def __init__(self, name: str, t: torch.Tensor):
        self.name, self._t = name, t
        self._place, self._geometry, self._inner = t.detach(), _geometry(t), _inside(t)
        self._version = None if t.is_inference() else t._version
        self._is_leaf, self._requires_grad, self._grad = t.is_leaf, t.requires_grad, t.grad if t.is_leaf else None
        self._hooks = {k: dict(getattr(t, k) or {}) for k in _HOOKS if t.is_leaf}
        self._fields = None if is_fake(t) else dict(vars(t))

    def moved(self) -> bool:
        """Whether the tensor lies elsewhere, or has another shape."""
        return bool(_geometry(self._t) != self._geometry)

    def without_gradient(self) -> None:
        for k in self._hooks:
            self._t.grad = None
            if table := getattr(self._t, k):
                table.clear()

    def put_back(self) -> None:
        t = self._t
        if self.moved() or t.layout is not torch.strided:
            t.data = self._place
        for k, inner in self._inner.items():
            if hasattr(t, "__tensor_flatten__") and getattr(t, k) is not inner:
                setattr(t, k, inner)
        if self._is_leaf and not t.is_leaf:
            if t._is_view():  # which detach_ refuses
                torch.utils.swap_tensors(t, t.detach())
            else:
                t.detach_()
        if t.is_leaf and t.requires_grad != self._requires_grad:
            t.requires_grad_(self._requires_grad)
        if t.is_leaf and t.grad is not self._grad:
            t.grad = self._grad
        for k, before in self._hooks.items():
            table = getattr(t, k)  # an empty one is refilled too; None: the tensor has had no hook
            put_back({} if table is None else table, before)
        if self._fields is not None:
            put_back(vars(t), self._fields)
        if self._version is not None and t._version != self._version:
            set_version_counter((t,), (self._version,))  # an autograd graph that saved the tensor finds what it expects


def fingerprint(content: torch.Tensor) -> tuple[int, ...]:
    """Numbers that tell contents of memory apart; two contents have the same ones with probability 2^-64."""
    words, rest = _words(content)
    total = torch.zeros((), dtype=torch.int64, device=content.device)
    keys = torch.arange(1, min(WORDS_AT_ONCE, words.numel()) + 1, device=content.device) * _FACTORS[0]
    for part in words.split(WORDS_AT_ONCE):
        mixed = part ^ keys[: part.numel()]
        for factor in _FACTORS:
            mixed.mul_(factor)
            mixed.bitwise_xor_(mixed >> 29)
        total.mul_(_FACTORS[1]).add_(mixed.sum())
    return int(total), *rest.tolist()


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Inside, operators run as they are: no mode, and no class of tensors, sees them."""
    with torch.inference_mode(False), torch.no_grad(), disable_modes(), disable_function_overrides():
        yield


def _words(content: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(whole words, the bytes after them): words are compared eight times as fast."""
    whole = content.numel() // 8 * 8
    return content[:whole].view(torch.int64), content[whole:]


def _bytes(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))


def _storage(t: torch.Tensor) -> Any:
    """The storage of a tensor that lies in one; None for a sparse tensor, or one that wraps others."""
    return t.untyped_storage() if t.layout is torch.strided and not hasattr(t, "__tensor_flatten__") else None


def _geometry(t: torch.Tensor) -> Any:
    if (storage := _storage(t)) is None:
        return t.shape, t.dtype, t.layout
    return storage._cdata, t.shape, t.stride(), t.storage_offset(), t.dtype, t.is_conj(), t.is_neg()


def _inside(t: Any) -> dict[str, torch.Tensor]:
    """The tensors that a sparse or wrapping tensor is made of, by name."""
    if hasattr(t, "__tensor_flatten__"):
        inside = {k: getattr(t, k) for k in t.__tensor_flatten__()[0]}
        return {k: x for k, x in inside.items() if isinstance(x, torch.Tensor)}  # a DTensor names its mesh too
    return sparse_parts(t)
