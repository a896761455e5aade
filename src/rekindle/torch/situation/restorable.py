"""Python objects that can change, with their present content and a way to put it back. Of a tensor only the version is looked
at: `tensor_state` puts tensors back."""

from __future__ import annotations

import contextlib
import logging
import types
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ...errors import RekindleError
from ..tensors import generators, tree
from ..tensors.containers import content, refill
from ..tensors.fields import fields_of, is_elsewhere, is_users, slots_of
from .callables import GlobalName
from .hooks import is_torchs


@dataclass(frozen=True)
class RestoreSettings:
    """How much is copied. Both are guesses.

    entries_most : a container of more entries, or an array of more elements, is not put back. bytes_most : nor is a tensor of
    more bytes that belongs neither to the module nor to its call.
    """

    entries_most: int = 100_000
    bytes_most: int = 400_000


SETTINGS = RestoreSettings()


_OPAQUE = (type, types.ModuleType, logging.Logger, logging.Handler, torch.dtype, torch.device,
           torch.utils.hooks.RemovableHandle, *tree.PLAIN)  # fmt: skip


def is_opaque(x: Any) -> bool:
    """Whether to leave an object alone: a plain value, a class that is not the user's, a module, torch's own generator, or one
    that raises when asked (a dead proxy)."""
    try:
        return isinstance(x, _OPAQUE) and not is_users(x) or x is torch.default_generator
    except Exception:
        return True


def _is_full(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


class PutBack:
    """Puts things back one by one. One that fails does not stop the others; `finish` raises."""

    def __init__(self) -> None:
        self.failed: list[tuple[str, BaseException]] = []

    def __call__(self, name: str, do: Callable[[], Any]) -> None:
        """Call `do`, which puts back what is called `name` in messages."""
        try:
            do()
        except BaseException as e:
            self.failed.append((name, e))

    def finish(self) -> None:
        """Raise RekindleError if something was not put back, and the user's interruption if there was one."""
        for _, e in self.failed:
            if not isinstance(e, Exception):
                raise e
        if self.failed:
            told = "; ".join(f"{name} ({type(e).__name__}: {e})" for name, e in self.failed)
            raise RekindleError(
                f"forward changes things that cannot be put back, so the model is not as it was: {told}. Restore its state "
                "(load_state_dict), and plan submodules whose forward does not change them, with parts=…"
            ) from self.failed[0][1]


class Restorable:
    """An object that can change: its content at first, and how to put it back.

    read : returns the content. write : makes a content the present one.
    """

    def __init__(self, x: Any, read: Callable[[], Any], write: Callable[[Any], None]):
        self.x, self.read, self.write = x, read, write
        self.before = read()

    def same(self) -> bool:
        """Whether the content is the same as at first."""
        return _same(self.read(), self.before)

    def restore(self) -> None:
        """Put the first content back."""
        self.write(self.before)

    def places(self) -> list[Any]:
        """The places in the object that changed, as in `SideEffects.written`."""
        held, now = getattr(self.x, "__dict__", None), self.read()
        if not isinstance(held, dict) or not isinstance(now, dict) or isinstance(self.x, GlobalName | dict):
            return [id(self.x)]
        names = now.keys() | self.before.keys()
        named = [k for k in names if not same_entry(now.get(k, _NOTHING), self.before.get(k, _NOTHING))]
        return [id(self.x), *((id(held), k) for k in named)]

    def inside(self) -> list[Any]:
        """The objects that it held at first."""
        x = self.before
        if isinstance(self.x, GlobalName | types.CellType):
            return [x]
        if isinstance(self.x, type):
            return [getattr(y, "__func__", getattr(y, "fget", y)) for y in x.values()]
        if isinstance(x, dict):
            return [*x.values(), *([type(self.x)] if is_users(type(self.x)) else [])]
        return list(x) if isinstance(x, list | set) else []


_NOTHING: Any = object()


def restorable(x: Any) -> Restorable | None:
    """How to watch and restore an object; None if it cannot change or is none of the user's."""
    if isinstance(x, GlobalName):
        where, name = x.where, x.name
        if is_opaque(where[name]) and not isinstance(where[name], tree.PLAIN):
            return None
        return Restorable(x, lambda: where.get(name, _NOTHING), lambda old: where.__setitem__(name, old))
    if isinstance(x, types.CellType):

        def set_cell(old: Any) -> None:
            if old is not _NOTHING:
                x.cell_contents = old

        return Restorable(x, lambda: x.cell_contents if _is_full(x) else _NOTHING, set_cell)
    if isinstance(x, torch.Tensor):
        plain = type(x) in (torch.Tensor, nn.Parameter) and not x.is_inference()
        return Restorable(x, lambda: x._version, lambda old: None) if plain else None
    if isinstance(x, type):
        return Restorable(x, lambda: _variables_of(x), lambda old: _set_variables(x, old))
    if isinstance(x, np.ndarray):
        return _array(x)
    if isinstance(x, (*generators.OTHERS, torch.Generator)):
        was = generators.state(x)
        return Restorable(x, lambda: generators.key(generators.state(x)), lambda _: generators.set_state(x, was))
    if isinstance(x, list | deque | dict | set) and len(x) <= SETTINGS.entries_most:
        return Restorable(x, lambda: content(x), lambda old: refill(x, old))
    if isinstance(x, tuple):
        return Restorable(x, lambda: list(x), lambda old: None)
    if (made := _of_python(x)) is not None:
        return made
    vars_, slots = getattr(x, "__dict__", None), () if is_elsewhere(x) else slots_of(type(x))
    if (isinstance(vars_, dict) or slots) and not is_torchs(type(x)):

        def reset(old: dict[str, Any]) -> None:
            if isinstance(vars_, dict):
                vars_.clear()
                vars_.update({k: y for k, y in old.items() if k not in slots})
            for k in slots:
                if k in old:
                    object.__setattr__(x, k, old[k])
                elif hasattr(x, k):
                    object.__delattr__(x, k)

        return Restorable(x, lambda: fields_of(x) if slots else dict(vars_), reset)  # type: ignore[arg-type]
    return None


def _variables_of(kind: type) -> dict[str, Any]:
    """The variables of a class, with the functions in it: code may replace them."""
    return {k: y for k, y in vars(kind).items() if k[:2] != "__" and not isinstance(y, types.MemberDescriptorType)}


def _set_variables(kind: type, old: dict[str, Any]) -> None:
    now = _variables_of(kind)
    for k in now.keys() - old.keys():
        delattr(kind, k)
    for k, y in old.items():
        if now.get(k, _NOTHING) is not y:
            setattr(kind, k, y)


def _of_python(x: Any) -> Restorable | None:
    """Objects of Python's own that lend their memory (arrays, bytearrays, ctypes), or that give and take their state (text and
    bytes in memory)."""
    with contextlib.suppress(TypeError), memoryview(x) as memory:
        if memory.readonly or memory.nbytes > SETTINGS.bytes_most:
            return None

        def write(old: bytes) -> None:
            if len(old) != memoryview(x).nbytes:
                del x[:]
                getattr(x, "frombytes", getattr(x, "extend", None))(old)  # type: ignore[misc]
            with memoryview(x) as now:
                now.cast("B")[:] = old

        return Restorable(x, lambda: bytes(memoryview(x)), write)
    kind = type(x)
    gives = getattr(kind, "__getstate__", None) is not getattr(object, "__getstate__", None)
    if kind.__module__ == "_io" and gives and hasattr(kind, "__setstate__"):
        return Restorable(x, x.__getstate__, x.__setstate__)
    return None


def _array(x: np.ndarray[Any, Any]) -> Restorable | None:
    def write(old: bytes) -> None:
        x[...] = np.frombuffer(old, x.dtype).reshape(x.shape)

    return None if x.dtype.hasobject or x.size > SETTINGS.entries_most else Restorable(x, x.tobytes, write)


def _same(x: Any, y: Any) -> bool:
    """Whether two contents are equal: plain values by value, other objects by identity."""
    if isinstance(x, dict) and isinstance(y, dict):
        return len(x) == len(y) and all(
            k is j and same_entry(a, b) or k == j and same_entry(a, b)
            for (k, a), (j, b) in zip(x.items(), y.items(), strict=True)
        )
    if isinstance(x, list) and isinstance(y, list):
        return len(x) == len(y) and all(map(same_entry, x, y))
    if isinstance(x, set) and isinstance(y, set):
        return len(x) == len(y) and {id(a) for a in x} == {id(b) for b in y} or x == y
    return same_entry(x, y)


def same_entry(x: Any, y: Any) -> bool:
    """Whether two entries are one object, or equal plain values."""
    return x is y or type(x) is type(y) and isinstance(x, tree.PLAIN) and (x == y or x != x and y != y)
