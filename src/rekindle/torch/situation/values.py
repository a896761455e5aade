"""Python values as keys: two values with the same key make forward do the same.

The key of a plain value, container, array or object with fields is made of its content, the key of a function of its code, its
globals' identity and its closure. A class or Python module counts by identity and by the plain values in it, an nn.Module by
identity and by its fields (guards look into the model's own submodules), a tensor by identity and by the properties that choose
its operators, and any other object by identity. A `Watch` collects the places of all these values, so that a later check needs
no second walk while each place holds the same object.
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
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from operator import attrgetter, contains, is_, itemgetter
from typing import Any

import torch
from torch import nn

from ..tensors import tree
from ..tensors.objects import (
    OBJECTS_MOST,
    PLAIN,
    InPlace,
    cells_of,
    content,
    entries,
    fields_of,
    function_in,
    is_elsewhere,
    is_simple,
    is_users,
    put_back,
    slots_of,
    without_plan,
)

Key = Any

# How much of an array its key holds; guesses.
KEPT_MOST_BYTES = 2**12  # arrays up to this size are kept byte by byte; of larger ones the key holds a checksum
CHECKSUM_MOST_BYTES = 2**26  # of arrays beyond this size the key holds only elements that are evenly spread
SPREAD_ELEMENTS = 2**12  # how many

# Levels of nested containers, objects and closures that a walk looks into; a guess. Deeper objects, and those after
# `OBJECTS_MOST`, count by identity.
LEVELS_MOST = 32


class Watch:
    """The places that a walk met, and the objects in them when it ended.

    own : ids of modules that count by identity, since guards look into them.
    """

    def __init__(self, own: Collection[int] = ()) -> None:
        self.own = own
        self.kinds: dict[int, tuple[Any, Key]] = {}  # classes and Python modules that a walk met, and their keys
        self.functions: list[types.FunctionType] = []  # that a walk met
        self.code: dict[int, types.FunctionType] = {}  # functions whose code and defaults count
        self.arrays: list[Any] = []
        self.tables: list[dict[Any, Any]] = []
        self.rows: list[Any] = []
        self.cells: list[Any] = []
        self.slots: list[tuple[Any, str]] = []
        self.tensors: list[torch.Tensor] = []
        self.variables: list[tuple[type, str]] = []  # of classes
        self._named: dict[int, tuple[Mapping[str, Any], dict[str, None]]] = {}  # tables of which some names count
        self._getters: list[tuple[Mapping[str, Any], Any]] = []  # of the values under some names of a table
        self._lacking: dict[tuple[int, str], Mapping[str, Any]] = {}  # (its id, a name that it has not) -> a table
        self._lacks: tuple[list[Mapping[str, Any]], list[str]] = [], []
        self._counted: list[Mapping[str, Any]] = []
        self._empty: list[dict[Any, Any]] = []
        self._held: list[Any] = []
        self._counts: list[Any] = []

    def name(self, x: Mapping[str, Any] | type, name: str) -> None:
        """Watch the value under this name of a table, or in a class itself."""
        if isinstance(x, type):
            self.variables.append((x, name))
            x = vars(x)
        self._named.setdefault(id(x), (x, {}))[1][name] = None

    def lack(self, x: Mapping[str, Any], name: str) -> None:
        """Watch that a table has no such name, which would hide a value of a table after it."""
        self._lacking[id(x), name] = x

    def part(self, x: Mapping[str, Any], names: Sequence[str]) -> None:
        """Watch the values under these names of a table, and the number of all names."""
        self._counted.append(x)
        if names:
            self._getters.append((x, itemgetter(*names, names[0])))

    def close(self) -> None:
        """Remember the objects that stand in all places now."""
        self._getters += [(t, itemgetter(*found, next(iter(found)))) for t, found in self._named.values()]
        # Most tables of hooks, parameters and submodules are empty, and `any` finds out at once whether they still are.
        plain = (dict, OrderedDict)  # a subclass may count its entries in another way
        self._empty = [t for t in self.tables if type(t) in plain and not t]
        self.tables = [t for t in self.tables if type(t) not in plain or t]
        self._lacks = [*self._lacking.values()], [name for _, name in self._lacking]
        self._held = [*self._values()]
        self._counts = self._sizes()

    def unchanged(self) -> bool:
        """Whether every place holds the very same object as when the walk ended."""
        if any(self._empty) or any(map(contains, *self._lacks)):
            return False
        try:
            return all(map(is_, self._values(), self._held)) and self._sizes() == self._counts
        except (RuntimeError, ValueError, KeyError):  # a container changed meanwhile; a cell is empty; a name is gone
            return False

    def ways_back(self) -> list[Callable[[], Any]]:
        """Functions that put back what the places hold now, but for arrays that are not small."""
        held = [x for x in (*self.tables, *self._empty, *self.rows) if not isinstance(x, frozenset)]
        small = [x for x in self.arrays if hasattr(x, "flat") and x.nbytes <= KEPT_MOST_BYTES]  # of NumPy
        named = [(t, get.__reduce__()[1]) for t, get in self._getters if isinstance(t, dict)]
        return [
            *(functools.partial(put_back, x, content(x)) for x in held),
            *(functools.partial(t.update, {k: t[k] for k in names if k in t}) for t, names in named),
            *(functools.partial(x.__setitem__, ..., x.copy()) for x in small if hasattr(x, "__setitem__")),
            *(functools.partial(setattr, c, "cell_contents", c.cell_contents) for c in self.cells),
            *(functools.partial(object.__setattr__, x, s, getattr(x, s)) for x, s in self.slots if hasattr(x, s)),
            *(functools.partial(type.__setattr__, c, k, vars(c)[k]) for c, k in self.variables if k in vars(c)),
        ]

    def _values(self) -> chain[Any]:
        cells = [c.cell_contents for c in self.cells]
        tables = chain.from_iterable([chain(dict.keys(t), dict.values(t)) for t in self.tables])
        slots = [getattr(x, name, _MISSING) for x, name in self.slots]
        named = chain.from_iterable([get(t) for t, get in self._getters])
        code = chain.from_iterable(map(CODE, self.code.values()))
        return chain(tables, chain.from_iterable(self.rows), cells, slots, named, code, _END)

    def _sizes(self) -> list[Any]:
        return [*map(array_key, self.arrays), *map(len, self._counted)]


_MISSING: Any = object()
_END = (object(),)  # without it, more or fewer objects than before would pass
CODE = attrgetter("__code__", "__defaults__", "__kwdefaults__")


_PLAIN_TYPES = frozenset({bool, int, float, complex, str, bytes, type(None), range, slice, torch.dtype, torch.device,
                          torch.Size, torch.layout, torch.memory_format})  # fmt: skip
_STAND_INS = frozenset({weakref.ProxyType, weakref.CallableProxyType})
_BY_IDENTITY = (InPlace, nn.Module, torch.optim.Optimizer, torch.Generator, types.GeneratorType, types.BuiltinFunctionType,
                logging.Logger, logging.LoggerAdapter, logging.Handler)  # fmt: skip
_NAMESPACES = (type, types.ModuleType)


def key_of(x: Any, watch: Watch | None = None) -> Key:
    """A hashable key of the value. watch : learns the places of all values that the key depends on."""
    if type(x) in _PLAIN_TYPES:
        return _of_plain(x)
    return Walk(Watch() if watch is None else watch).key(x)


def _of_plain(x: Any) -> Key:
    kind = type(x)
    if kind is float:
        return (float, x.hex())
    if kind is complex:
        return (complex, x.real.hex(), x.imag.hex())
    return (kind, repr(x) if kind is slice else x)


def plain_of(key: Key) -> Any:
    """The plain value of which this is the key, or the key itself where it is of another value."""
    if not isinstance(key, tuple) or len(key) != 2 or key[0] not in _PLAIN_TYPES or key[0] is slice:
        return key
    return float.fromhex(key[1]) if key[0] is float else key[1]


class Walk:
    """One walk through a value. An object met again is named by its number; all objects count towards the limits."""

    def __init__(self, watch: Watch):
        self.watch = watch
        self.left = OBJECTS_MOST
        self.seen: dict[int, int] = {}  # id of each object met -> its number
        self.alive: list[Any] = []  # keeps ids from being reused during the walk

    def key(self, x: Any, deep: int = LEVELS_MOST) -> Key:
        """A hashable key of the value. deep : levels that may still be looked into."""
        kind = type(x)
        if kind in _STAND_INS:  # a weak proxy passes every question to its object, which may be gone
            return Same(x)
        if kind in _PLAIN_TYPES:
            return _of_plain(x)
        if isinstance(x, pathlib.PurePath):  # a path caches its text in itself when asked for it
            return (kind, str(x))
        if isinstance(x, torch.Tensor):
            self.watch.tensors.append(x)
            return Same(x), tuple(x.shape), x.dtype, x.device, x.requires_grad
        self.left -= 1
        if isinstance(x, _NAMESPACES):
            return (Same(x), self.namespace(x))
        if isinstance(x, nn.Module) and id(x) not in self.watch.own and id(x) not in self.seen:
            return self._module(x, deep - 1)
        if isinstance(x, _BY_IDENTITY) or deep <= 0 or self.left <= 0 or kind.__module__.startswith("rekindle."):
            return Same(x)
        if id(x) in self.seen:
            return ("again", self.seen[id(x)])
        self.seen[id(x)] = len(self.seen)
        self.alive.append(x)
        try:
            return self._inside(x, kind, deep - 1)
        except Exception:  # looking into it fails: a dead proxy, a property that raises
            return Same(x)

    def _inside(self, x: Any, kind: type, deep: int) -> Key:
        if isinstance(x, dict):
            self.watch.tables.append(x)
            pairs = [(self.key(k, deep), self.key(v, deep)) for k, v in [*entries(x)]]
            return (kind, tuple(pairs), self._fields(x, deep))
        if isinstance(x, tuple | list | deque):
            if not isinstance(x, tuple):
                self.watch.rows.append(x)
            more = () if kind in _CONTAINERS or kind is deque else self._fields(x, deep)
            return (kind, tuple([self.key(v, deep) for v in [*x]]), *more)
        if isinstance(x, set | frozenset):
            self.watch.rows.append(x)
            return (kind, frozenset([self.key(v, deep) for v in [*x]]))
        if is_array(x):
            self.watch.arrays.append(x)
            return (kind, array_key(x))
        if isinstance(x, types.MethodType):
            return (kind, self.key(x.__func__, deep), self.key(x.__self__, deep))
        if isinstance(x, types.FunctionType):
            return (self._code(x), self._closure(x, deep))
        if isinstance(x, staticmethod | classmethod):
            return (kind, self.key(x.__func__, deep))
        if isinstance(x, functools.partial):
            return (kind, self.key(x.func, deep), self.key(x.args, deep), self.key(x.keywords, deep))
        if isinstance(x, PLAIN):  # enums, and subclasses of plain types
            return (kind, Same(x) if kind.__hash__ is None else x, repr(x))
        fields = (*self._fields(x, deep), *self.namespace(kind))
        return (kind, fields) if fields else Same(x)

    def _fields(self, x: Any, deep: int) -> Key:
        held, slots = getattr(x, "__dict__", None), slots_of(type(x))
        if isinstance(held, dict):
            self.watch.tables.append(held)
        self.watch.slots += [(x, s) for s in slots]
        return tuple([(k, self.key(v, deep)) for k, v in without_plan(fields_of(x)).items()])

    def namespace(self, x: Any) -> Key:
        """A key of the plain values and functions of a class and its bases, and of their objects, or of a Python module.

        Functions count by identity. () for classes and modules of Python itself, torch and NumPy.
        """
        known = self.watch.kinds
        if id(x) not in known:
            known[id(x)] = (x, ())  # while its key is made: it may refer to itself
            found = [self._of_namespace(k) for k in getattr(x, "__mro__", (x,)) if not is_elsewhere(k)]
            known[id(x)] = (x, tuple([k for k in found if k]))
        return known[id(x)][1]

    def _of_namespace(self, x: Any) -> Key:
        held = vars(x)
        code = {k: f for k, v in [*held.items()] if type(f := function_in(v)) is types.FunctionType}
        plain = {k: v for k, v in [*held.items()] if k[:2] != "__" and (is_simple(v) or _is_config(v, x))}
        plain |= {k: v for k, v in [*held.items()] if isinstance(v, torch.Tensor)}
        self.watch.part(held, [*code, *plain])
        if isinstance(x, type):
            self.watch.variables += [(x, k) for k in (*code, *plain)]
        self.watch.functions += code.values()
        return (*[(k, Same(f)) for k, f in code.items()], *[(k, self.key(v)) for k, v in plain.items()])

    def _code(self, f: types.FunctionType) -> Key:
        """A key of what a function does with its closure: one that a call makes anew (a hook, a lambda) does the same as the
        last one. A function with attributes of its own counts by identity, since its code may read and change them."""
        own = f.__dict__.keys() - {"__wrapped__"}
        return (Same(f) if own else Same(f.__globals__), Same(f.__code__))

    def _closure(self, f: types.FunctionType, deep: int) -> Key:
        self.watch.functions.append(f)
        self.watch.code[id(f)] = f
        cells = cells_of(f)
        self.watch.cells += cells
        self.watch.slots += [(f, k) for k in ("__defaults__", "__kwdefaults__") if getattr(f, k)]
        found = [self.key(c.cell_contents, deep) for c in cells]
        return (*found, self.key(f.__defaults__, deep), self.key(f.__kwdefaults__, deep))

    def _module(self, x: nn.Module, deep: int) -> Key:
        """The key of a module that is no submodule of the model: one in a plain list, say."""
        found = [m for m in x.modules() if id(m) not in self.watch.own and id(m) not in self.seen]
        for m in found:
            self.seen[id(m)] = len(self.seen)
            self.alive.append(m)
        if deep <= 0:
            return Same(x)
        return (Same(x), tuple([(type(m), self._fields(m, deep), self.namespace(type(m))) for m in found]))


def _is_config(v: Any, holder: Any) -> bool:
    """Whether a value of a class is an object of the user's whose fields forward may read, and no function or descriptor."""
    kind = type(v)
    plain = isinstance(holder, type) and not callable(v) and not hasattr(kind, "__get__")
    return plain and (kind is types.SimpleNamespace or is_users(kind)) and not isinstance(v, _NAMESPACES)


_CONTAINERS = frozenset({dict, list, tuple, type})


def constants(spec: Any) -> Key:
    """A hashable key of a structure that `tree.flatten` returned: its shape, its keys, its constants."""
    if isinstance(spec, tree.Branch):
        kind = spec.like if isinstance(spec.like, type) else type(spec.like)
        more = () if spec.place is None else (spec.place,)
        return (kind, spec.keys, tuple([constants(c) for c in spec.children]), *more)
    return spec if isinstance(spec, tree.Leaf | tree.Opaque | tree.LeftOut | tree.Kept) else key_of(spec)


def is_array(x: Any) -> bool:
    """Whether x holds bytes that can be written to in place, or is a NumPy number."""
    numpy: Any = sys.modules.get("numpy")
    numpys = () if numpy is None else (numpy.ndarray, numpy.generic)
    return isinstance(x, bytearray | array.array) or isinstance(x, numpys) and not x.dtype.hasobject


def array_key(x: Any) -> Key:
    """A key of an array's content: its bytes, their checksum, or some of its elements."""
    head = (str(x.dtype), x.shape) if hasattr(x, "dtype") else (len(x),)
    size = x.nbytes if hasattr(x, "nbytes") else len(x) * getattr(x, "itemsize", 1)
    if size <= KEPT_MOST_BYTES:
        return (*head, x.tobytes() if hasattr(x, "tobytes") else bytes(x))
    if size > CHECKSUM_MOST_BYTES:
        flat = getattr(x, "flat", x)
        some = flat[:: len(flat) // SPREAD_ELEMENTS]
        return (*head, some.tobytes() if hasattr(some, "tobytes") else bytes(some))
    try:
        return (*head, zlib.crc32(x.T if hasattr(x, "T") and not x.flags.c_contiguous else x))
    except (BufferError, ValueError, TypeError):  # not contiguous, or a type that no buffer supports
        return (*head, zlib.crc32(x.tobytes()))


class Same:
    """A key that equals only the key of the same object, and keeps it alive only where Python has no weak reference."""

    __slots__ = ("_hash", "_of")

    def __init__(self, x: Any):
        self._hash = id(x)
        self._of: Callable[[], Any]
        try:
            self._of = weakref.ref(x)
        except TypeError:
            self._of = lambda: x

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


def apart_from_identity(key: Any) -> Any:
    """The key without the identities in it: equal for keys that differ only in which objects they name."""
    if isinstance(key, tuple | frozenset):
        return type(key)(map(apart_from_identity, key)) if type(key) in (tuple, frozenset) else key
    return Same if isinstance(key, Same) else key
