"""Python values as keys: two values with the same key make forward do the same.

The key of a plain value, container, array or object with fields is made of its content, that of a function of its code, its
globals' identity and its closure. A class or Python module counts by
identity and by the plain values in it, an nn.Module by identity and by its fields (guards look into the model's own
submodules), a tensor by identity and by the properties that choose its operators, and any other object by identity. A `Watch`
collects the places of all these values, so that a later check needs no second walk while each place holds the same object.
"""

from __future__ import annotations

import functools
import logging
import pathlib
import types
import weakref
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..tensors import tree
from ..tensors.arrays import array_key, is_array
from ..tensors.containers import entries
from ..tensors.fields import fields_of, is_elsewhere, is_simple, slots_of
from ..tensors.identity import Same
from .watch import Watch

Key = Any


@dataclass(frozen=True)
class WalkSettings:
    """Limits of one walk; objects beyond them count by identity. Both are guesses.

    entries_most : objects that are looked into. levels_most : nested containers, objects and closures.
    """

    entries_most: int = 20_000
    levels_most: int = 32


SETTINGS = WalkSettings()

_PLAIN_TYPES = frozenset({bool, int, str, bytes, type(None), range, slice, torch.dtype, torch.device, torch.Size, torch.layout,
                          torch.memory_format})  # fmt: skip
_STAND_INS = frozenset({weakref.ProxyType, weakref.CallableProxyType})
_BY_IDENTITY = (nn.Module, torch.optim.Optimizer, torch.Generator, types.GeneratorType, types.BuiltinFunctionType,
                logging.Logger, logging.LoggerAdapter, logging.Handler)  # fmt: skip
_NAMESPACES = (type, types.ModuleType)


def key_of(x: Any, watch: Watch | None = None) -> Key:
    """A hashable key of the value. watch : learns the places of all values that the key depends on."""
    return Walk(watch).key(x)


class Walk:
    """One walk through a value. An object met again is named by its number; all objects count towards the limits."""

    def __init__(self, watch: Watch | None):
        self.watch = watch
        self.own: Collection[int] = () if watch is None else watch.own
        self.kinds: dict[int, tuple[Any, Key]] = {} if watch is None else watch.kinds
        self.left = SETTINGS.entries_most
        self.seen: dict[int, int] = {}  # id of each object met -> its number
        self.alive: list[Any] = []  # keeps ids from being reused during the walk

    def key(self, x: Any, deep: int = SETTINGS.levels_most) -> Key:
        """A hashable key of the value. deep : levels that may still be looked into."""
        kind = type(x)
        if kind in _STAND_INS:  # a weak proxy passes every question to its object, which may be gone
            return Same(x)
        if kind is float:
            return (float, x.hex())
        if kind in _PLAIN_TYPES:
            return (kind, x) if kind is not slice else (kind, repr(x))
        if kind is complex:
            return (complex, x.real.hex(), x.imag.hex())
        if isinstance(x, pathlib.PurePath):  # a path caches its text in itself when asked for it
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
        except Exception:  # looking into it fails: a dead proxy, a property that raises
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
        if is_array(x):
            if self.watch is not None:
                self.watch.array(x)
            return (kind, array_key(x))
        if isinstance(x, types.MethodType):
            return (kind, self.key(x.__func__, deep), self.key(x.__self__, deep))
        if isinstance(x, types.FunctionType):
            return (self._code(x), self._closure(x, deep))
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
        """A key of the plain values and functions of a class and its bases, or of a Python module.

        Functions count by identity. () for classes and modules of Python itself, torch and NumPy.
        """
        known = self.kinds
        if id(x) not in known:
            known[id(x)] = (x, ())  # while its key is made: it may refer to itself
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

    def _code(self, f: types.FunctionType) -> Key:
        """A key of what a function does with its closure: one that a call makes anew (a hook, a lambda) does the same as the
        last one. A function with attributes of its own counts by identity, since its code may read and change them."""
        own = f.__dict__.keys() - {"__wrapped__"}
        return Same(f) if own else (Same(f.__code__), Same(f.__globals__))

    def _closure(self, f: types.FunctionType, deep: int) -> Key:
        found = []
        if self.watch is not None:
            self.watch.functions.append(f)
        for c in f.__closure__ or ():
            try:
                found.append(self.key(c.cell_contents, deep))
            except ValueError:  # the cell is empty
                continue
            if self.watch is not None:
                self.watch.cell(c)
        return (*found, self.key(f.__defaults__, deep), self.key(f.__kwdefaults__, deep))

    def _module(self, x: nn.Module, deep: int) -> Key:
        """The key of a module that is no submodule of the model: one in a plain list, say."""
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


def _code_of(x: Any) -> Any:
    """The function inside a static or class method, a property or a cached property."""
    kind = type(x)
    if kind in (staticmethod, classmethod):
        return x.__func__
    return x.fget if kind is property else x.func if kind is functools.cached_property else x


_CONTAINERS = frozenset({dict, list, tuple, type})


def _beside(branch: tree.Branch) -> tuple[Key, ...]:
    """A key of the plain attributes of a container whose class is not a built-in one."""
    fields = getattr(branch.like, "__dict__", None)
    if isinstance(branch.like, type) or not isinstance(fields, dict):
        return ()
    found = [(k, key_of(x)) for k, x in fields.items() if isinstance(x, tree.PLAIN) and k not in (branch.keys or ())]
    return (tuple(found),) if found else ()


def constants(spec: Any) -> Key:
    """A hashable key of a structure that `tree.flatten` returned: its shape, its keys, its constants."""
    if isinstance(spec, tree.Branch):
        kind = spec.like if isinstance(spec.like, type) else type(spec.like)
        more = _beside(spec) if type(spec.like) not in _CONTAINERS else ()
        more += () if spec.place is None else (spec.place,)
        return (kind, spec.keys, tuple([constants(c) for c in spec.children]), *more)
    return spec if isinstance(spec, tree.Leaf | tree.Opaque | tree.LeftOut | tree.Kept) else key_of(spec)
