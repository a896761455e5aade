"""What forwards, and the functions that they call, read outside of the module and of their variables.

Code tells by name which globals it reads, and of modules, classes and other objects among them which attributes. An object
that is named alone (`c = CONFIG`, `helper(CONFIG)`, `getattr(CONFIG, name)`), and one that gives an attribute by code of its
own, counts by all of its fields.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import is_, itemgetter
from typing import Any

import torch
from torch import nn

from . import tree
from .code_reads import all_names, imports, ways
from .side_effects import is_torchs
from .values import Key, Same, Walk, Watch, fields_of, is_elsewhere, is_simple, key_of, slots_of

MOST_FUNCTIONS = 2_000  # whose globals are looked at
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_LIBRARY = os.path.dirname(os.__file__)
_GENERATED = ("<frozen", "<string>", "<attrs")  # code of Python itself, of named tuples, of dataclasses
# What `key_of` looks into although its class is Python's own, torch's or NumPy's.
_OPEN = (type, types.ModuleType, torch.Tensor, nn.Module, functools.partial, types.MethodType, *tree.PLAIN)


class Globals:
    """keys : what is guarded, such as "the global net.CONFIG.scale" -> a key of its value. names : all names in the code of the
    functions that were looked at, of attributes too.

    functions : where to begin. ignored : names of `keys` to be left out.
    """

    def __init__(self, functions: Iterable[types.FunctionType], watch: Watch, ignored: Collection[str] = ()):
        self.keys: dict[str, Key] = {}
        self.names: set[str] = set()
        self._watch, self._ignored = watch, ignored
        self._links: dict[int, tuple[Mapping[str, Any], dict[str, Any]]] = {}  # what stood in a table under some names
        self._places: list[
            tuple[str, set[Any]]
        ] = []  # of fields of objects: name of the key, and where it can be written to
        self._pending = [g for f in functions for g in _with_inner(f) if not is_torchs(g)]
        done: dict[int, types.FunctionType] = {}
        while (self._pending or self._take_met()) and len(done) < MOST_FUNCTIONS:
            f = self._pending.pop()
            if id(f) not in done:
                done[id(f)] = f
                self._read(f)
        self._held = [
            (t, itemgetter(*held, next(iter(held))), tuple(held.values())) for t, held in self._links.values()
        ]

    def unchanged(self) -> bool:
        """Whether every name stands for the very same object as before, as far as `watch` does not tell."""
        try:
            return all(all(map(is_, get(table), held)) for table, get, held in self._held)
        except KeyError:
            return False

    def written(self, places: Collection[Any]) -> set[str]:
        """Names of the keys of fields of objects that stand in these places: ids of objects and containers, and pairs of the id
        of an object's table and a name in it."""
        return {name for name, where in self._places if not where.isdisjoint(places)}

    def _take_met(self) -> bool:
        """Whether values that were looked into gave further functions of the user's to be looked at."""
        met = [g for f in self._watch.functions for g in _with_inner(f) if _is_users(g)]
        self._watch.functions.clear()
        self._pending += met
        return bool(met)

    def _read(self, f: types.FunctionType) -> None:
        table = f.__globals__
        where = f"the global {table.get('__name__', '?')}"
        self.names.update(all_names(f.__code__))
        for way in ways(f.__code__):
            if way[0] in table:
                self._follow(table, way, where, table)
        for level, name, way in imports(f.__code__):
            package = str(table.get("__package__") or "") if level else ""
            with contextlib.suppress(ImportError, ValueError):
                name = importlib.util.resolve_name("." * level + name, package) if level else name
            held = sys.modules.get(name)
            if held is None or is_elsewhere(held):
                continue
            if not way:
                self._whole(f"the file {name}", held)
            elif way[0] in vars(held):
                self._follow(vars(held), way, f"the global {name}", table)

    def _follow(self, holder: Mapping[str, Any], way: tuple[str, ...], where: str, table: Mapping[str, Any]) -> None:
        """Guard what code of a file with these globals reads on that way, attribute by attribute."""
        for i, name in enumerate(way):
            x, text = holder[name], f"{where}.{'.'.join(way[: i + 1])}"
            self._link(holder, name, x)
            if isinstance(x, staticmethod | classmethod):
                x = x.__func__
            if isinstance(x, _FUNCTIONS):
                self._function(text, x, table)
                return
            if is_simple(x):
                self.keys[text] = key_of(x, self._watch)
                return
            if isinstance(x, type) and issubclass(x, torch.autograd.Function):  # autograd calls what it defines
                self._pending += [g for f in vars(x).values() for g in _with_inner(f) if _is_followed(g, table)]
            found = None if i + 1 == len(way) or is_elsewhere(x) else _holder(x, way[i + 1])
            if found is None or _by_code(x, way[i + 1], found):
                break
            holder = found
        self._whole(text, x)

    def _link(self, holder: Mapping[str, Any], name: str, x: Any) -> None:
        self._links.setdefault(id(holder), (holder, {}))[1][name] = x

    def _function(self, text: str, x: Any, table: Mapping[str, Any]) -> None:
        followed = [g for g in _with_inner(x) if _is_followed(g, table)]
        self._pending += followed
        self.keys[text] = key_of(x, self._watch) if followed else Same(x)

    def _whole(self, text: str, x: Any) -> None:
        """Guard all of what an object, a class or a Python module holds."""
        if isinstance(x, _OPEN) or not _has_fields(x):
            self.keys[text] = key_of(x, self._watch)
            return
        if is_elsewhere(x):
            self.keys[text] = Same(x)
            return
        walk, fields = Walk(self._watch), fields_of(x)
        held = getattr(x, "__dict__", None)
        if f"the class of {text}" not in self.keys:
            self.keys[f"the class of {text}"] = (type(x), walk.namespace(type(x)))
        left = [k for k in fields if f"{text}.{k}" not in self._ignored]
        for k in left:
            walk.seen.clear()
            self.keys[f"{text}.{k}"] = walk.key(fields[k])
            self._places.append((f"{text}.{k}", {(id(held), k), *walk.seen}))
        if isinstance(held, dict):
            self._watch.part(held, [k for k in left if k in held])
        for s in slots_of(type(x)):
            if s in left or s not in fields:
                self._watch.slot(x, s)


def _has_fields(x: Any) -> bool:
    return isinstance(getattr(x, "__dict__", None), dict) or bool(slots_of(type(x)))


def _holder(x: Any, name: str) -> Mapping[str, Any] | None:
    """The table in which Python finds the attribute; None: code gives it."""
    own = getattr(x, "__dict__", None)
    if not isinstance(x, type) and isinstance(own, dict) and name in own:
        return own
    kinds = x.__mro__ if isinstance(x, type) else type(x).__mro__
    return next((k.__dict__ for k in kinds if name in k.__dict__), None)


def _by_code(x: Any, name: str, holder: Mapping[str, Any]) -> bool:
    """Whether what the attribute is, or does, may depend on other fields of the object: a method, a property, a slot."""
    if isinstance(x, type | types.ModuleType) or holder is getattr(x, "__dict__", None):
        return False
    return hasattr(type(holder[name]), "__get__")


def _with_inner(f: Any) -> Iterator[types.FunctionType]:
    """A function, or what a partial or a method has, and those that it closes over, which a decorator was given."""
    found: dict[int, types.FunctionType] = {}
    pending = [f]
    while pending and len(found) < MOST_FUNCTIONS:
        f = pending.pop()
        f = f.func if type(f) is functools.partial else getattr(f, "__func__", f)
        if type(f) is not types.FunctionType or id(f) in found:
            continue
        found[id(f)] = f
        for c in f.__closure__ or ():
            try:
                pending.append(c.cell_contents)
            except ValueError:  # nothing in it yet
                continue
    yield from found.values()


def _is_followed(g: types.FunctionType, table: Mapping[str, Any]) -> bool:
    """Whether it is a function of the same file, or of the user's."""
    return g.__globals__ is table or _is_users(g)


def _is_users(g: types.FunctionType) -> bool:
    name = g.__code__.co_filename
    return not name.startswith((_LIBRARY, *_GENERATED)) and "-packages" not in name and not is_torchs(g)
