"""Python values as keys: two values with the same key make forward do the same.

Plain values, containers, arrays and objects with fields count by what they hold; classes and whatever cannot be looked into
by identity; modules by both, but for those that are looked at elsewhere; tensors by identity and by what says which operators
take them. A `Watch` collects on the way where those values stand, so that a later look needs no second walk while every one
of them is still the same object.
"""

from __future__ import annotations

import array
import functools
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import nn

from . import tree
from .contents import entries

Key = Any
MOST_ENTRIES = 20_000  # of one walk; objects beyond that count by identity
LARGEST = 2**20  # bytes of an array; larger ones count by identity
DEEPEST = 8  # levels of containers, objects and closures

_PLAIN_TYPES = frozenset({bool, int, str, bytes, type(None), range, slice, torch.dtype, torch.device, torch.Size, torch.layout,
                          torch.memory_format})  # fmt: skip
_STAND_INS = frozenset({weakref.ProxyType, weakref.CallableProxyType})
_BY_IDENTITY = (nn.Module, torch.optim.Optimizer, torch.Generator, types.ModuleType, type, types.GeneratorType,
                types.BuiltinFunctionType)  # fmt: skip


class Same:
    """A key that is equal to that of the same object alone, and keeps it alive only where Python has no weak reference."""

    __slots__ = ("_hash", "_of")

    def __init__(self, x: Any):
        self._hash = id(x)
        self._of: Callable[[], Any]
        try:
            self._of = weakref.ref(x)
        except TypeError:
            self._of = functools.partial(_itself, x)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same):
            return NotImplemented
        mine = self._of()
        return mine is not None and mine is other._of()

    def __repr__(self) -> str:
        x = self._of()
        return getattr(x, "__qualname__", None) or f"a {type(x).__name__}"


def _itself(x: Any) -> Any:
    return x


class Watch:
    """The containers that a walk met, and what they held.

    own : ids of modules that count by identity, since somebody else looks into them.
    """

    def __init__(self, own: Collection[int] = ()) -> None:
        self.own = own
        self._arrays: list[Any] = []
        self._contents: list[Any] = []
        self._tables: list[dict[Any, Any]] = []
        self._rows: list[Any] = []
        self._cells: list[Any] = []
        self._held: list[Any] = []

    def table(self, x: dict[Any, Any]) -> None:
        self._tables.append(x)

    def row(self, x: Any) -> None:
        self._rows.append(x)

    def cell(self, x: Any) -> None:
        self._cells.append(x)

    def array(self, x: Any) -> None:
        self._arrays.append(x)

    def close(self) -> None:
        """Remember what they hold now."""
        self._held = [*self._values()]
        self._contents = [*map(_content, self._arrays)]

    def unchanged(self) -> bool:
        """Whether they hold the very same objects as when the walk ended."""
        try:
            now = [*self._values()]
        except (RuntimeError, ValueError):  # one changes meanwhile; an empty cell
            return False
        return (
            len(now) == len(self._held)
            and all(map(is_, now, self._held))
            and (not self._arrays or [*map(_content, self._arrays)] == self._contents)
        )

    def _values(self) -> chain[Any]:
        cells = [c.cell_contents for c in self._cells]
        tables = chain.from_iterable([chain(dict.keys(t), dict.values(t)) for t in self._tables])
        return chain(tables, chain.from_iterable(self._rows), cells)


def key_of(x: Any, watch: Watch | None = None) -> Key:
    """A hashable key of the value. `watch` learns where what it depends on stands."""
    return _Walk(watch).key(x, DEEPEST)


class _Walk:
    def __init__(self, watch: Watch | None):
        self.watch = watch
        self.own: Collection[int] = () if watch is None else watch.own
        self.left = MOST_ENTRIES
        self.seen: dict[int, int] = {}  # objects being walked or done, by order: the same object again is named by that
        self.alive: list[Any] = []  # so that no address is given away meanwhile

    def key(self, x: Any, deep: int) -> Key:
        kind = type(x)
        if kind in _STAND_INS:  # they answer for what they stand for, which may be gone
            return Same(x)
        if kind is float:
            return (float, x.hex())
        if kind in _PLAIN_TYPES:
            return (kind, x) if kind is not slice else (kind, repr(x))
        if kind is complex:
            return (complex, x.real.hex(), x.imag.hex())
        if isinstance(x, torch.Tensor):
            return Same(x), tuple(x.shape), x.dtype, x.device, x.requires_grad
        self.left -= 1
        if isinstance(x, nn.Module) and id(x) not in self.own and id(x) not in self.seen:
            return self._module(x, deep - 1)
        if isinstance(x, _BY_IDENTITY) or deep <= 0 or self.left <= 0:
            return Same(x)
        if id(x) in self.seen:
            return ("again", self.seen[id(x)])
        self.seen[id(x)] = len(self.seen)
        self.alive.append(x)
        try:
            return self._inside(x, kind, deep - 1)
        except Exception:  # it cannot be looked into: a stand-in for what is gone, a property that fails
            return Same(x)

    def _inside(self, x: Any, kind: type, deep: int) -> Key:
        if isinstance(x, dict):
            self._table(x)
            return (
                kind,
                tuple([(self.key(k, deep), self.key(v, deep)) for k, v in [*entries(x)]]),
                self._fields(x, deep),
            )
        if isinstance(x, tuple | list | deque):
            if not isinstance(x, tuple):
                self._row(x)
            return (kind, tuple([self.key(v, deep) for v in [*x]]))
        if isinstance(x, set | frozenset):
            self._row(x)
            return (kind, frozenset([self.key(v, deep) for v in [*x]]))
        if _is_array(x):
            if self.watch is not None:
                self.watch.array(x)
            return (kind, _content(x))
        if isinstance(x, types.MethodType):
            return (kind, self.key(x.__func__, deep), self.key(x.__self__, deep))
        if isinstance(x, types.FunctionType):
            return (Same(x), self._closure(x, deep))
        if isinstance(x, staticmethod | classmethod):
            return (kind, self.key(x.__func__, deep))
        if isinstance(x, functools.partial):
            return (kind, self.key(x.func, deep), self.key(x.args, deep), self.key(x.keywords, deep))
        if isinstance(x, tree.PLAIN):  # enums, and subclasses of plain types
            return (kind, Same(x) if kind.__hash__ is None else x, repr(x))
        fields = self._fields(x, deep)
        return (kind, fields) if fields else Same(x)

    def _fields(self, x: Any, deep: int) -> Key:
        held = getattr(x, "__dict__", None)
        slots = [s for k in type(x).__mro__ for s in _slots(k) if hasattr(x, s)]
        if not isinstance(held, dict):
            held = {}
        elif held:
            self._table(held)
        named = [(k, self.key(v, deep)) for k, v in [*held.items()]]
        return tuple(named + [(s, self.key(getattr(x, s), deep)) for s in slots])

    def _closure(self, f: types.FunctionType, deep: int) -> Key:
        found = []
        for c in f.__closure__ or ():
            try:
                found.append(self.key(c.cell_contents, deep))
            except ValueError:  # nothing in it yet
                continue
            if self.watch is not None:
                self.watch.cell(c)
        return (*found, self.key(f.__defaults__, deep), self.key(f.__kwdefaults__, deep))

    def _module(self, x: nn.Module, deep: int) -> Key:
        """A module that is no submodule of the one that is looked at: in a plain list, say."""
        found = [m for m in x.modules() if id(m) not in self.own and id(m) not in self.seen]
        for m in found:
            self.seen[id(m)] = len(self.seen)
            self.alive.append(m)
        if deep <= 0:
            return Same(x)
        return (Same(x), tuple([(type(m), self._fields(m, deep)) for m in found]))

    def _table(self, x: Any) -> None:
        if self.watch is not None:
            self.watch.table(x)

    def _row(self, x: Any) -> None:
        if self.watch is not None:
            self.watch.row(x)


def _is_array(x: Any) -> bool:
    """Whether it holds bytes that can be written to in place, few enough to be looked at in every call; or is a number of
    NumPy's."""
    if isinstance(x, bytearray | array.array):
        return len(x) <= LARGEST
    numpys = type(x).__module__ == "numpy" and hasattr(x, "tobytes") and hasattr(x, "dtype")
    return numpys and x.nbytes <= LARGEST and not x.dtype.hasobject


def _content(x: Any) -> Key:
    return (str(getattr(x, "dtype", "")), getattr(x, "shape", ()), x.tobytes() if hasattr(x, "tobytes") else bytes(x))


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(s for s in names if s not in ("__dict__", "__weakref__") and not s.startswith("__"))


_CONTAINERS = frozenset({dict, list, tuple, type})


def _beside(branch: tree.Branch) -> tuple[Key, ...]:
    """Plain values that a container of some class of its own carries beside its entries."""
    fields = getattr(branch.like, "__dict__", None)
    if isinstance(branch.like, type) or not isinstance(fields, dict):
        return ()
    found = [(k, key_of(x)) for k, x in fields.items() if isinstance(x, tree.PLAIN) and k not in (branch.keys or ())]
    return (tuple(found),) if found else ()


def constants(spec: Any) -> Key:
    """A hashable key of a structure that `tree.flatten` gave: its shape, its keys, its constants."""
    if isinstance(spec, tree.Branch):
        kind = spec.like if isinstance(spec.like, type) else type(spec.like)
        more = _beside(spec) if type(spec.like) not in _CONTAINERS else ()
        return (kind, spec.keys, tuple([constants(c) for c in spec.children]), *more)
    return spec if isinstance(spec, tree.Leaf | tree.Opaque) else key_of(spec)
