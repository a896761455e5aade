"""Python values as keys: two values with the same key make forward do the same.

Plain values, containers, arrays and objects with fields count by what they hold; whatever cannot be looked into by identity;
classes and Python modules by identity and by the plain values in them. Modules of torch count by identity and by their fields;
guards look into the model's own submodules. Tensors count by identity and by what says which operators take them. A `Watch`
collects on the way where those values stand, so that a later look needs no second walk while every one of them is still the
same object.
"""

from __future__ import annotations

import array
import functools
import logging
import pathlib
import sys
import types
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import nn

from . import tree
from .contents import entries

Key = Any
MOST_ENTRIES = 20_000  # of one walk; objects beyond that count by identity
EXACT = 2**12  # bytes of an array that are kept to be compared; of larger ones their checksum
LARGEST = 2**26  # bytes of an array; of larger ones elements spread evenly count
SPREAD = 2**12  # elements of those
DEEPEST = 32  # levels of containers, objects and closures

_PLAIN_TYPES = frozenset({bool, int, str, bytes, type(None), range, slice, torch.dtype, torch.device, torch.Size, torch.layout,
                          torch.memory_format})  # fmt: skip
_STAND_INS = frozenset({weakref.ProxyType, weakref.CallableProxyType})
_BY_IDENTITY = (nn.Module, torch.optim.Optimizer, torch.Generator, types.GeneratorType, types.BuiltinFunctionType,
                logging.Logger, logging.LoggerAdapter, logging.Handler)  # fmt: skip
_ELSEWHERE = sys.stdlib_module_names - {"__main__", "argparse", "types"} | {"numpy", "torch"}
_NAMESPACES = (type, types.ModuleType)


class Same:
    """A key that equals only the key of the same object, and keeps it alive only where Python has no weak reference."""

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
        self.kinds: dict[int, tuple[Any, Key]] = {}  # classes and Python modules that were met, and their keys
        self.functions: list[types.FunctionType] = []  # that were met
        self._arrays: list[Any] = []
        self._tables: list[dict[Any, Any]] = []
        self._rows: list[Any] = []
        self._cells: list[Any] = []
        self._slots: list[tuple[Any, str]] = []
        self._parts: list[tuple[Mapping[str, Any], tuple[str, ...]]] = []
        self._held: list[Any] = []
        self._counts: list[Any] = []

    def table(self, x: dict[Any, Any]) -> None:
        self._tables.append(x)

    def part(self, x: Mapping[str, Any], names: Iterable[str]) -> None:
        """What stands under these names, and how many others there are."""
        self._parts.append((x, tuple(names)))

    def slot(self, x: Any, name: str) -> None:
        self._slots.append((x, name))

    def row(self, x: Any) -> None:
        self._rows.append(x)

    def cell(self, x: Any) -> None:
        self._cells.append(x)

    def array(self, x: Any) -> None:
        self._arrays.append(x)

    def close(self) -> None:
        """Remember what they hold now."""
        self._held = [*self._values()]
        self._counts = self._sizes()

    def unchanged(self) -> bool:
        """Whether they hold the very same objects as when the walk ended."""
        try:
            now = [*self._values()]
        except (RuntimeError, ValueError):  # one changes meanwhile; an empty cell
            return False
        return len(now) == len(self._held) and all(map(is_, now, self._held)) and self._sizes() == self._counts

    def _values(self) -> chain[Any]:
        cells = [c.cell_contents for c in self._cells]
        tables = chain.from_iterable([chain(dict.keys(t), dict.values(t)) for t in self._tables])
        slots = [getattr(x, name, _MISSING) for x, name in self._slots]
        parts = [t.get(name, _MISSING) for t, names in self._parts for name in names]
        return chain(tables, chain.from_iterable(self._rows), cells, slots, parts)

    def _sizes(self) -> list[Any]:
        return [*map(_content, self._arrays), *[len(t) for t, _ in self._parts]]


def key_of(x: Any, watch: Watch | None = None) -> Key:
    """A hashable key of the value. `watch` learns where what it depends on stands."""
    return Walk(watch).key(x)


class Walk:
    """One walk: what was met before is named by its number, and all that it meets counts towards `MOST_ENTRIES`."""

    def __init__(self, watch: Watch | None):
        self.watch = watch
        self.own: Collection[int] = () if watch is None else watch.own
        self.kinds: dict[int, tuple[Any, Key]] = {} if watch is None else watch.kinds
        self.left = MOST_ENTRIES
        self.seen: dict[int, int] = {}  # objects being walked or done, by order: the same object again is named by that
        self.alive: list[Any] = []  # so that no address is given away meanwhile

    def key(self, x: Any, deep: int = DEEPEST) -> Key:
        """A key of the value."""
        kind = type(x)
        if kind in _STAND_INS:  # they answer for what they stand for, which may be gone
            return Same(x)
        if kind is float:
            return (float, x.hex())
        if kind in _PLAIN_TYPES:
            return (kind, x) if kind is not slice else (kind, repr(x))
        if kind is complex:
            return (complex, x.real.hex(), x.imag.hex())
        if isinstance(x, pathlib.PurePath):  # it remembers its text once asked for it
            return (kind, str(x))
        if isinstance(x, torch.Tensor):
            return Same(x), tuple(x.shape), x.dtype, x.device, x.requires_grad
        self.left -= 1
        if isinstance(x, _NAMESPACES):
            return (Same(x), self.namespace(x))
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
            more = () if kind in _CONTAINERS or kind is deque else self._fields(x, deep)
            return (kind, tuple([self.key(v, deep) for v in [*x]]), *more)
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
        fields = (*self._fields(x, deep), *self.namespace(kind))
        return (kind, fields) if fields else Same(x)

    def _fields(self, x: Any, deep: int) -> Key:
        held, slots = getattr(x, "__dict__", None), slots_of(type(x))
        if isinstance(held, dict):
            self._table(held)
        if self.watch is not None:
            for s in slots:
                self.watch.slot(x, s)
        return tuple([(k, self.key(v, deep)) for k, v in fields_of(x).items()])

    def namespace(self, x: Any) -> Key:
        """Plain values and functions of a class, and of those that it inherits from, or of a Python module; () of Python's
        own, torch's and NumPy's. The functions count by identity."""
        known = self.kinds
        if id(x) not in known:
            known[id(x)] = (x, ())  # it may hold itself
            found = [self._of_namespace(k) for k in getattr(x, "__mro__", (x,)) if not is_elsewhere(k)]
            known[id(x)] = (x, tuple([k for k in found if k]))
        return known[id(x)][1]

    def _of_namespace(self, x: Any) -> Key:
        held = vars(x)
        code = {k: f for k, v in [*held.items()] if type(f := _code_of(v)) is types.FunctionType}
        plain = {k: v for k, v in [*held.items()] if k[:2] != "__" and is_simple(v)}
        if self.watch is not None:
            self.watch.part(held, [*code, *plain])
            self.watch.functions += code.values()
        return (*[(k, Same(f)) for k, f in code.items()], *[(k, self.key(v)) for k, v in plain.items()])

    def _closure(self, f: types.FunctionType, deep: int) -> Key:
        found = []
        if self.watch is not None:
            self.watch.functions.append(f)
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
        return (Same(x), tuple([(type(m), self._fields(m, deep), self.namespace(type(m))) for m in found]))

    def _table(self, x: Any) -> None:
        if self.watch is not None:
            self.watch.table(x)

    def _row(self, x: Any) -> None:
        if self.watch is not None:
            self.watch.row(x)


def _is_array(x: Any) -> bool:
    """Whether it holds bytes that can be written to in place; or is a number of NumPy's."""
    numpy: Any = sys.modules.get("numpy")
    numpys = () if numpy is None else (numpy.ndarray, numpy.generic)
    return isinstance(x, bytearray | array.array) or isinstance(x, numpys) and not x.dtype.hasobject


def _content(x: Any) -> Key:
    """What an array holds: its bytes, their checksum, or some of them."""
    head = (str(x.dtype), x.shape) if hasattr(x, "dtype") else (len(x),)
    size = x.nbytes if hasattr(x, "nbytes") else len(x) * getattr(x, "itemsize", 1)
    if size <= EXACT:
        return (*head, x.tobytes() if hasattr(x, "tobytes") else bytes(x))
    if size > LARGEST:
        flat = getattr(x, "flat", x)
        some = flat[:: len(flat) // SPREAD]
        return (*head, some.tobytes() if hasattr(some, "tobytes") else bytes(some))
    try:
        return (*head, zlib.crc32(x.T if hasattr(x, "T") and not x.flags.c_contiguous else x))
    except (BufferError, ValueError, TypeError):  # not in one piece; a type that no buffer has
        return (*head, zlib.crc32(x.tobytes()))


def is_elsewhere(x: Any) -> bool:
    """Whether a module, class or object is Python's own, torch's or NumPy's, which nobody sets a number in."""
    name = x.__name__ if isinstance(x, types.ModuleType) else (x if isinstance(x, type) else type(x)).__module__
    return str(name).partition(".")[0] in _ELSEWHERE


def is_simple(x: Any) -> bool:
    """Whether forward may compute with it: no function, class, module or other object."""
    return issubclass(type(x), _SIMPLE)  # by its type alone: a stand-in that is asked would look for what it stands for


_SIMPLE = (bool, int, float, complex, str, type(None), torch.dtype, tuple, list, dict, set)
_MISSING: Any = object()


def _code_of(x: Any) -> Any:
    """The function in a method, a property, a static or a cached one."""
    kind = type(x)
    if kind in (staticmethod, classmethod):
        return x.__func__
    return x.fget if kind is property else x.func if kind is functools.cached_property else x


def fields_of(x: Any) -> dict[str, Any]:
    """The fields of an object that stand in itself, by name."""
    held = getattr(x, "__dict__", None)
    found = dict(held) if isinstance(held, dict) else {}
    return found | {s: getattr(x, s) for s in slots_of(type(x)) if hasattr(x, s)}


def slots_of(kind: type) -> tuple[str, ...]:
    """The names in `__slots__` of a class and of those that it inherits from."""
    return tuple([s for k in kind.__mro__ if "__slots__" in k.__dict__ for s in _slots(k)])


def _slots(kind: type) -> list[str]:
    slots = kind.__dict__["__slots__"]
    names = [slots] if isinstance(slots, str) else [*slots]
    private = f"_{kind.__name__.lstrip('_')}"  # Python puts it before names that begin with two underscores
    return [private + s if s[:2] == "__" else s for s in names if s not in ("__dict__", "__weakref__")]


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
