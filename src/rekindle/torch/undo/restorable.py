"""Python objects that can change, with their present content and a way to put it back. Of a tensor only the version is looked
at: `tensor_state` puts tensors back. Nothing puts an item of an iterator back, so that taking one is refused by its line.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import random
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

from ...errors import RekindleError, TraceError
from ...saying.frames import in_short, line_of, users_frame
from ..private import disable_modes
from ..situation.callables import GlobalName, is_torchs
from ..tensors.objects import (
    PLAIN,
    content,
    fields_of,
    function_in,
    is_elsewhere,
    is_full,
    is_users,
    refill,
    same_content,
    same_entry,
    slots_of,
    values_of,
)

# How much is copied; guesses.
ENTRIES_MOST = 100_000  # a container of more entries, or an array of more elements, is not put back
BYTES_MOST = 400_000  # nor is a tensor of more bytes that belongs neither to the module nor to its call

GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)  # all but torch's
_OPAQUE = (type, types.ModuleType, logging.Logger, logging.Handler, torch.dtype, torch.device,
           torch.utils.hooks.RemovableHandle, *PLAIN)  # fmt: skip


def is_opaque(x: Any) -> bool:
    """Whether to leave an object alone: a plain value, a class that is not the user's, a module, torch's own generator, or one
    that raises when asked (a dead proxy)."""
    try:
        return isinstance(x, _OPAQUE) and not is_users(x) or x is torch.default_generator
    except Exception:
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


@dataclass(frozen=True)
class Kind:
    """How objects of one kind are taken apart and put together.

    read : returns the content: a dict, list, set, or a value that only `write` understands. write : makes a content the present
    one. inside : the objects in a content, to be looked at in their turn.
    """

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]
    inside: Callable[[Any], Iterable[Any]] = lambda held: ()


class Restorable:
    """An object that can change: its content at first, and how to put it back."""

    def __init__(self, x: Any, kind: Kind):
        self.x, self._kind = x, kind
        self.before = self.read()

    def read(self) -> Any:
        """The present content."""
        return self._kind.read(self.x)

    def write(self, content: Any) -> None:
        """Make a content the present one."""
        self._kind.write(self.x, content)

    def same(self) -> bool:
        """Whether the content is the same as at first."""
        return same_content(self.read(), self.before)

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
        """The objects that it held at first; the class of an object of the user's is one."""
        held, kind = [*self._kind.inside(self.before)], type(self.x)
        return [*held, kind] if (self._kind is _FIELDS or isinstance(self.x, dict)) and is_users(kind) else held


_NOTHING: Any = object()


def restorable(x: Any) -> Restorable | None:
    """How to watch and restore an object; None if it cannot change or is none of the user's."""
    kind = _kind_of(x)
    return None if kind is None else Restorable(x, kind)


def _kind_of(x: Any) -> Kind | None:
    if isinstance(x, GlobalName):
        now = x.where[x.name]
        return None if is_opaque(now) and not isinstance(now, PLAIN) else _NAME
    if isinstance(x, types.CellType):
        return _CELL
    if isinstance(x, torch.Tensor):
        return _TENSOR if type(x) in (torch.Tensor, nn.Parameter) and not x.is_inference() else None
    if isinstance(x, type):
        return _CLASS
    if isinstance(x, np.ndarray):
        return None if x.dtype.hasobject or x.size > ENTRIES_MOST else _ARRAY
    if isinstance(x, (*GENERATORS, torch.Generator)):
        return _GENERATOR
    if isinstance(x, list | deque | dict | set) and len(x) <= ENTRIES_MOST:
        return _CONTAINER
    if isinstance(x, tuple):
        return _TUPLE
    with contextlib.suppress(TypeError), memoryview(x) as memory:
        if not memory.readonly and memory.nbytes <= BYTES_MOST:
            return _MEMORY
    gives = getattr(type(x), "__getstate__", None) is not getattr(object, "__getstate__", None)
    if type(x).__module__ == "_io" and gives and hasattr(type(x), "__setstate__"):
        return _STREAM
    has_fields = isinstance(getattr(x, "__dict__", None), dict) or bool(_slots(x))
    return _FIELDS if has_fields and not is_torchs(type(x)) else None


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


def _set_memory(x: Any, old: bytes) -> None:
    if len(old) != memoryview(x).nbytes:
        del x[:]
        getattr(x, "frombytes", getattr(x, "extend", None))(old)  # type: ignore[misc]
    with memoryview(x) as now:
        now.cast("B")[:] = old


def _state(x: Any) -> Any:
    """The state of a random generator."""
    if isinstance(x, random.Random):
        return x.getstate()
    if isinstance(x, np.random.RandomState):
        return x.get_state(legacy=False)
    if isinstance(x, torch.Generator):
        with disable_modes():
            return x.get_state().numpy()
    return (x.bit_generator if isinstance(x, np.random.Generator) else x).state


def _set_state(x: Any, to: Any) -> None:
    if isinstance(x, random.Random):
        x.setstate(to)
    elif isinstance(x, np.random.RandomState | torch.Generator):
        with disable_modes():
            x.set_state(torch.from_numpy(to) if isinstance(to, np.ndarray) else to)  # type: ignore[arg-type]
    else:
        (x.bit_generator if isinstance(x, np.random.Generator) else x).state = to


def _slots(x: Any) -> tuple[str, ...]:
    return () if is_elsewhere(x) else slots_of(type(x))


def _fields(x: Any) -> dict[str, Any]:
    return fields_of(x) if _slots(x) else dict(vars(x))


def _set_fields(x: Any, old: dict[str, Any]) -> None:
    held, slots = getattr(x, "__dict__", None), _slots(x)
    if isinstance(held, dict):
        held.clear()
        held.update({k: y for k, y in old.items() if k not in slots})
    for k in slots:
        if k in old:
            object.__setattr__(x, k, old[k])
        elif hasattr(x, k):
            object.__delattr__(x, k)


_NAME = Kind(lambda x: x.where.get(x.name, _NOTHING), lambda x, old: x.where.__setitem__(x.name, old), lambda y: [y])
_CELL = Kind(
    lambda x: x.cell_contents if is_full(x) else _NOTHING,
    lambda x, old: None if old is _NOTHING else setattr(x, "cell_contents", old),
    lambda y: [y],
)
_TENSOR = Kind(lambda t: t._version, lambda t, old: None)
_CLASS = Kind(_variables_of, _set_variables, lambda held: map(function_in, held.values()))
_ARRAY = Kind(lambda x: x.tobytes(), lambda x, old: x.__setitem__(..., np.frombuffer(old, x.dtype).reshape(x.shape)))
_GENERATOR = Kind(lambda x: pickle.dumps(_state(x)), lambda x, old: _set_state(x, pickle.loads(old)))
_CONTAINER = Kind(content, refill, lambda held: held.values() if isinstance(held, dict) else held)
_TUPLE = Kind(list, lambda x, old: None, lambda held: held)
_MEMORY = Kind(lambda x: bytes(memoryview(x)), _set_memory)  # lent by Python's own objects: arrays, bytearrays, ctypes
_STREAM = Kind(lambda x: x.__getstate__(), lambda x, old: x.__setstate__(old))  # text and bytes in memory
_FIELDS = Kind(_fields, _set_fields, lambda held: held.values())


class Refused:
    """Stands for an iterator, and refuses its items to the thread that made this. name : of its place, for messages."""

    __slots__ = ("iterator", "name", "thread")

    def __init__(self, iterator: Any, name: str):
        self.iterator, self.name, self.thread = iterator, name, threading.get_ident()

    def __iter__(self) -> Refused:
        return self

    def __next__(self) -> Any:
        return next(self.iterator) if threading.get_ident() != self.thread else self._refuse()

    def __getattr__(self, name: str) -> Any:  # `send`, `close`
        if name[:2] == "__":
            raise AttributeError(name)
        return getattr(self.iterator, name) if threading.get_ident() != self.thread else self._refuse()

    def _refuse(self) -> NoReturn:
        frame = users_frame()
        line = "" if frame is None else line_of(frame)
        raise TraceError(
            f"forward takes items of an iterator ({type(self.iterator).__name__} {self.name}) at {line or 'an unknown line'}, "
            "which no one can put back, and a planned step would not take any. Take the item outside of forward and pass it "
            "in; or keep a list and a position",
            line=in_short(line),
            reason="takes items of an iterator",
        )


class Iterators:
    """The iterators that a model's modules and these objects hold, out of reach between `take` and `give_back`."""

    def __init__(self, model: nn.Module, objects: Iterable[Restorable]):
        held = [x for m in model.modules() for x in (vars(m), *vars(m).values()) if isinstance(x, dict | list)]
        own = [restorable(x) for x in held if any(map(is_iterator, values_of(x)))]
        every = [*objects, *(w for w in own if w is not None)]
        refused = [_replaced(w.before, lambda x, k: Refused(x, k) if is_iterator(x) else x) for w in every]
        self._holders = [(w, new) for w, new in zip(every, refused, strict=True) if new is not None]
        self.take()

    def take(self) -> None:
        """Put objects that refuse into the places of the iterators."""
        for w, new in self._holders:
            w.write(new)

    def give_back(self) -> None:
        """Put the iterators into their places, unless these hold something else now."""
        for w, _ in self._holders:
            new = _replaced(w.read(), lambda x, k: x.iterator if isinstance(x, Refused) else x)
            if new is not None:
                w.write(new)


def is_iterator(x: Any) -> bool:
    """Whether x gives items one by one, and has no fields by which it could be put back."""
    kind = type(x)
    return hasattr(kind, "__next__") and kind.__dictoffset__ == 0 and not slots_of(kind)


def _replaced(content: Any, f: Callable[[Any, str], Any]) -> Any:
    """The content of an object with other entries; None: `f` changes none."""
    if isinstance(content, dict):
        new = {k: f(x, f"under {k!r}") for k, x in content.items()}
        return new if any(new[k] is not x for k, x in content.items()) else None
    if isinstance(content, list):
        row = [f(x, f"number {i + 1}") for i, x in enumerate(content)]
        return row if any(a is not b for a, b in zip(row, content, strict=True)) else None
    new = f(content, "in a variable")
    return None if new is content else new
