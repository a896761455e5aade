"""The globals that forwards, and the functions that they call, read.

Their code names the globals, and the attributes that it reads from modules, classes and other objects among them. All fields of
an object count if code names the object alone (`c = CONFIG`, `helper(CONFIG)`, `getattr(CONFIG, name)`), or if the object
computes the attribute by code of its own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..tensors.objects import (
    OBJECTS_MOST,
    PLAIN,
    fields_of,
    has_fields,
    is_elsewhere,
    is_installed,
    is_simple,
    slots_of,
)
from .callables import closure_of, codes_in, global_paths, imports, is_torchs, without_closure
from .values import Key, Same, Walk, Watch, key_of

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_LIBRARY = os.path.dirname(os.__file__)
# File names of code that Python, named tuples, dataclasses and attrs generate.
_GENERATED = ("<frozen", "<string>", "<attrs")
# Names that stand together in code which hangs hooks on nodes of autograd; on tensors.
ON_NODES = (("register_prehook",), ("grad_fn", "register_hook"))
ON_TENSORS = (("register_hook",), ("register_post_accumulate_grad_hook",))
# Types that `key_of` looks into although they come from Python itself, torch or NumPy.
_OPEN = (type, types.ModuleType, torch.Tensor, nn.Module, functools.partial, types.MethodType, *PLAIN)


class Globals:
    """The guarded globals of some functions and of the functions that they call.

    keys : name of a guarded value, such as "the global net.CONFIG.scale" -> a key of the value.
    names : all names in the code of the functions, of attributes too.
    whole : id of an object that counts whole -> its name. backward : functions of autograd Functions that backward runs.
    functions : all that were read.

    functions : where to begin. watch : learns the places of the values. ignored : names to leave out of `keys`. apart : code
    that does not count; where it is given, neither does the backward of autograd Functions.
    """

    def __init__(
        self,
        functions: Iterable[types.FunctionType],
        watch: Watch,
        ignored: Collection[str],
        apart: Collection[types.CodeType] | None = None,
    ):
        self.keys: dict[str, Key] = {}
        self.names: set[str] = set()
        self.whole: dict[int, str] = {}
        self.backward: list[types.FunctionType] = []
        self._code: list[tuple[types.CodeType, dict[str, Any]]] = []
        self._watch, self._ignored, self._apart = watch, ignored, apart
        # Of fields of objects: name in `keys`, and the places that hold its value.
        self._places: list[tuple[str, set[Any]]] = []
        self._pending = [g for f in functions for g in _with_inner(f) if not is_torchs(g)]
        done: dict[int, types.FunctionType] = {}
        while (self._pending or self._take_met()) and len(done) < OBJECTS_MOST:
            f = self._pending.pop()
            if id(f) not in done:
                done[id(f)] = f
                self._read(f)
        self.functions = [*done.values()]

    def written(self, places: Collection[Any]) -> set[str]:
        """Names in `keys` of fields of objects that stand in these places, as in `SideEffects.written`."""
        return {name for name, where in self._places if not where.isdisjoint(places)}

    def hung(self, by: Collection[Collection[str]] = ON_NODES) -> Iterator[types.FunctionType]:
        """Functions that code may hang as hooks on nodes of autograd or on tensors, as far as the code names them. by : as
        `ON_NODES`."""
        for c, table in self._code:
            if any(set(k) <= {*c.co_names} for k in by):
                yield from (f for k in c.co_names if isinstance(f := table.get(k), types.FunctionType))
                yield from (f for f in self.functions if f.__name__ in c.co_names)
                yield from (without_closure(x, table) for x in c.co_consts if isinstance(x, types.CodeType))

    def _take_met(self) -> bool:
        """Add the user's functions that the watched values hold; whether there were any."""
        met = [g for f in self._watch.functions for g in _with_inner(f) if _is_users(g)]
        self._watch.functions.clear()
        self._pending += met
        return bool(met)

    def _read(self, f: types.FunctionType) -> None:
        table = f.__globals__
        where = f"the global {table.get('__name__', '?')}"
        if id(f) not in self._watch.code:
            text = f"the function {f.__qualname__}"
            self.keys[text] = (*self.keys.get(text, ()), key_of(f, self._watch))
        codes = [*codes_in(f.__code__, self._apart or ())]
        self.names.update(*[c.co_names for c in codes])
        self._code += [(c, table) for c in codes]
        for path in dict.fromkeys(path for c in codes for path in global_paths(c)):
            if path[0] in table:
                self._follow(table, path, where, table)
            else:  # a built-in name
                self._watch.lack(table, path[0])
        for level, name, path in dict.fromkeys(found for c in codes for found in imports(c)):
            package = str(table.get("__package__") or "") if level else ""
            with contextlib.suppress(ImportError, ValueError):
                name = importlib.util.resolve_name("." * level + name, package) if level else name
            held = sys.modules.get(name)
            if held is None or is_elsewhere(held):
                continue
            if not path:
                self._whole(f"the file {name}", held)
            elif path[0] in vars(held):
                self._follow(vars(held), path, f"the global {name}", table)

    def _follow(
        self, holder: Mapping[str, Any] | type, path: tuple[str, ...], where: str, table: Mapping[str, Any]
    ) -> None:
        """Guard the values that code reads along a path of names, attribute by attribute.

        holder : where the first name stands. where : the holder's name. table : the globals of the code.
        """
        self._watch.name(holder, path[0])
        for i, name in enumerate(path):
            x = (vars(holder) if isinstance(holder, type) else holder)[name]
            text = f"{where}.{'.'.join(path[: i + 1])}"
            if isinstance(x, staticmethod | classmethod):
                x = x.__func__
            if isinstance(x, _FUNCTIONS):
                self._function(text, x, table)
                holder = getattr(x, "__dict__", {})
                if i + 1 == len(path) or path[i + 1] not in holder:
                    return
                self._watch.name(holder, path[i + 1])
                self._places.append((f"{text}.{path[i + 1]}", {id(holder)}))
                continue
            if is_simple(x):
                self.whole[id(x)] = text
                self.keys[text] = key_of(x, self._watch)
                return
            if isinstance(x, type) and issubclass(x, torch.autograd.Function):  # autograd calls its methods
                self.backward += [g for g in _with_inner(x.backward) if _is_followed(g, table)]
                methods = [f for k, f in vars(x).items() if self._apart is None or k != "backward"]
                self._pending += [g for f in methods for g in _with_inner(f) if _is_followed(g, table)]
            is_torch = isinstance(x, types.ModuleType) and x.__name__.partition(".")[0] == "torch"
            closed = is_elsewhere(x) and not is_torch
            found = None if i + 1 == len(path) or closed else self._holder(x, path[i + 1])
            if found is None or _by_code(x, path[i + 1], found):
                break
            holder = found
        self._whole(text, x)

    def _holder(self, x: Any, name: str) -> Mapping[str, Any] | type | None:
        """The table, or the class, in which Python finds the attribute; None: code computes it. All before it are watched."""
        own = getattr(x, "__dict__", None)
        places: list[Any] = [own] if not isinstance(x, type) and isinstance(own, dict) else []
        for kind in x.__mro__ if isinstance(x, type) else type(x).__mro__:
            if name in vars(kind) or not is_elsewhere(kind):
                places.append(kind)
            if name in vars(kind):
                break
        tables = [(p, vars(p) if isinstance(p, type) else p) for p in places]
        for p, t in tables:
            self._watch.name(p, name) if name in t else self._watch.lack(t, name)
        found = [(p, t[name]) for p, t in tables if name in t]
        if not found:
            return None
        # A property, which can be set, goes before the object's own.
        return (found[-1] if hasattr(type(found[-1][1]), "__set__") else found[0])[0]

    def _function(self, text: str, x: Any, table: Mapping[str, Any]) -> None:
        followed = [g for g in _with_inner(x) if _is_followed(g, table)]
        self._pending += followed
        self.keys[text] = key_of(x, self._watch) if followed else Same(x)

    def _whole(self, text: str, x: Any) -> None:
        """Guard all fields of an object, a class or a Python module."""
        self.whole[id(x)] = text
        if isinstance(x, _OPEN) or not has_fields(x):
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
                self._watch.slots.append((x, s))


def _by_code(x: Any, name: str, holder: Mapping[str, Any] | type) -> bool:
    """Whether the attribute may depend on other fields of the object: a method, a property, a slot."""
    if isinstance(x, type | types.ModuleType) or not isinstance(holder, type):
        return False
    return hasattr(type(vars(holder)[name]), "__get__")


def _with_inner(f: Any) -> list[types.FunctionType]:
    """The function in f, which may be a partial or a method, and the functions in its closure, such as decorated ones."""
    return [g for g in closure_of(f) if type(g) is types.FunctionType]


def _is_followed(g: types.FunctionType, table: Mapping[str, Any]) -> bool:
    """Whether the function is from the file with these globals, or the user's."""
    return g.__globals__ is table or _is_users(g)


def _is_users(g: types.FunctionType) -> bool:
    name = g.__code__.co_filename
    return not name.startswith((_LIBRARY, *_GENERATED)) and not is_installed(name) and not is_torchs(g)
