"""Side effects of a captured call: changes to Python objects outside of the graph, by code that planned steps do not run.

They have three sources: hooks on submodules, forwards that replace a submodule's own, and forward itself. Tracing runs all of
this code on tensors without data, so the objects that it can reach are noted before, compared after, and put back. Hooks and
replaced forwards are named, since the user expects them to run at each step.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..situation.callables import (
    DEFAULT,
    GLOBAL,
    HOOKS,
    VARIABLE,
    GlobalName,
    codes_of,
    is_torchs,
    names_in,
    prints_or_logs,
    references,
    user_hooks,
    variables_of,
)
from ..tensors.objects import (
    OBJECTS_MOST,
    function_in,
    is_elsewhere,
    is_installed,
    is_simple,
    is_users,
    reached,
    values_of,
)
from .restorable import ENTRIES_MOST, GENERATORS, PutBack, Restorable, is_opaque, restorable

# How far objects are followed; guesses. At most `OBJECTS_MOST` are watched.
STEPS_MOST = 20 * OBJECTS_MOST  # steps of the walk: it comes to one object on several ways
REFERENCES_DEEP = 3  # references that are followed from a function or an attribute

CLASS, ARGUMENT = "the class ", "the argument "
VARIABLES = (VARIABLE, GLOBAL, DEFAULT, CLASS, ARGUMENT)  # of names in `SideEffects.dropped` that are no attributes
_OF_EVERY_MODULE = set(nn.Module().__dict__)


class SideEffects:
    """The side effects of code that runs between `watch` and `put_back`, which undoes them.

    arguments : objects that the call is given, by name.

    `put_back` sets these:

    changed : names of hooks and replaced forwards that had effects.
    dropped : names of objects that forward itself changed: in attributes, globals, variables of enclosing functions, arguments.
    drawn : names of random generators that forward drew from and that are Python objects of their own.
    written : places that forward wrote to: ids of containers and objects, and pairs of the id of an object's `__dict__` and a
        name in it.

    `Attributes` handles the attributes of the model's modules, and the lists, dicts and sets in them.
    """

    def __init__(self, model: nn.Module, arguments: Mapping[str, Any] | None = None):
        self.changed: list[str] = []
        self.dropped: list[str] = []
        self.drawn: list[str] = []
        self._arguments = arguments or {}
        self.written: set[Any] = set()
        self._own = {id(m): name for name, m in model.named_modules()}
        # (name, path, function, keys of the watched objects that it reaches) of each
        self._hooks: list[tuple[str, str, Any, set[Any]]] = []
        self._model = model
        self._watched: dict[Any, Restorable] = {}
        self._by_name: dict[str, set[Any]] = {}
        self._steps = 0

    def watch(self) -> None:
        """Note the objects that the code reaches, as they are now."""
        self._hooks = [(name, at, fn, set(self._reach(fn))) for name, at, fn in user_hooks(self._model)]
        for kind in dict.fromkeys(type(m) for m in self._model.modules() if not is_torchs(type(m))):
            for fn in methods_of(kind):
                for name, x in variables_of(fn):
                    if name != f"{VARIABLE}__class__":  # of `super()`: the model's own class is looked at by itself
                        self._name(name, self._walk(x, 0))
        for path, m in self._model.named_modules():
            for k, x in m.__dict__.items():
                if k in _OF_EVERY_MODULE or k == "forward" or isinstance(x, torch.Tensor):
                    continue
                inside = values_of(x) if isinstance(x, dict | list) else [x]
                self._name(f"{path}.{k}".lstrip("."), (h for y in inside[:ENTRIES_MOST] for h in self._walk(y, 1)))
        for name, x in self._arguments.items():
            self._name(f"{ARGUMENT}{name}", self._walk(x, 1))
        for kind in dict.fromkeys(k for m in self._model.modules() for k in type(m).__mro__ if not is_elsewhere(k)):
            if is_users(kind):
                self._name(f"{CLASS}{kind.__name__}", self._walk(kind, 0))
            elif (made := restorable(kind)) is not None:  # of an installed package: only undone, not named
                self._watched[id(kind)] = made
                for x in filter(is_simple, made.inside()):
                    deque(self._walk(x, 1), 0)
        for attribute in HOOKS:  # hooks of the model itself run at each planned step too: only undone, not named
            for fn in list((getattr(self._model, attribute, None) or {}).values()):
                if not is_torchs(fn):
                    deque(self._reach(fn), 0)

    def _name(self, name: str, holders: Iterable[Any]) -> None:
        """Call the watched objects with these keys by a name."""
        self._by_name.setdefault(name, set()).update(holders)

    def put_back(self, back: PutBack) -> None:
        """Find what has changed, and put it back."""
        changed = {key for key, w in self._watched.items() if not w.same()}
        for key in changed:
            self.written.update(self._watched[key].places())
            back(f"an object of type {type(self._watched[key].x).__name__}", self._watched[key].restore)
        self.changed = [name for name, _, fn, holders in self._hooks if changed & holders or prints_or_logs(fn)]
        drawn = {k for k in changed if isinstance(self._watched[k].x, GENERATORS)}
        every = [*self._by_name.items(), *((name, holders) for name, *_, holders in self._hooks)]
        self.drawn = [name for name, holders in every if drawn & holders]
        hooked = set[Any]().union(*(holders for *_, holders in self._hooks))
        self.dropped = [name for name, _ in self._named(changed, hooked)]

    def _named(self, changed: set[Any], hooked: set[Any]) -> Iterator[tuple[str, set[Any]]]:
        """(name, keys of the changed objects under it). hooked : keys that only hooks reach, or share with forward."""
        told: set[Any] = set()  # objects that have a name: one that several modules share is named once
        for name, holders in self._by_name.items():
            if new := changed & (holders - hooked) - told:
                yield name, new
                told |= changed & holders

    def changed_now(self) -> list[tuple[str, Restorable]]:
        """(name for messages, object) of the objects that have changed, but for tensors."""
        changed = {k for k, w in self._watched.items() if not isinstance(w.x, torch.Tensor) and not w.same()}
        return [(name, self._watched[k]) for name, keys in self._named(changed, set()) for k in keys]

    @property
    def watched(self) -> list[Restorable]:
        """All objects that are watched."""
        return list(self._watched.values())

    def tensors(self, of_module: bool) -> Iterator[tuple[str, torch.Tensor]]:
        """(name for messages, tensor) of the tensors that are watched. of_module : those in attributes of modules and in
        arguments; else those in variables and hooks."""
        own = {
            k: name for name, holders in self._by_name.items() if not name.startswith(VARIABLES[:-1]) for k in holders
        }
        for key, w in self._watched.items():
            if isinstance(w.x, torch.Tensor) and (key in own) == of_module:
                yield own.get(key, "a tensor in a variable"), w.x

    def hooks_that_set(self, attribute: str) -> list[str]:
        """Names of the hooks whose code mentions this attribute of a module.

        If the attribute is a table of hooks, the names of the hooks in it: one of them removes itself.
        """
        path, _, leaf = attribute.rpartition(".")
        if leaf in HOOKS:
            return [name for name, at, *_ in self._hooks if at == path]
        return [name for name, _, fn, _ in self._hooks if any(leaf in names_in(code) for code in codes_of(fn))]

    def _reach(self, fn: Any) -> Iterator[Any]:
        for x in references(fn):
            yield from self._walk(x, 0)

    def _walk(self, x: Any, depth: int) -> Iterator[Any]:
        """Watch x and the objects that it reaches, and yield their keys."""
        self._steps += 1
        full = len(self._watched) >= OBJECTS_MOST or self._steps > STEPS_MOST
        if full or id(x) in self._own or is_opaque(x):
            return
        if isinstance(x, types.FunctionType | types.MethodType | functools.partial):
            further = references(x) if depth < REFERENCES_DEEP else [getattr(x, "__dict__", None)]
            for y in () if is_torchs(x) else further:
                yield from self._walk(y, depth + 1)
            return
        key = (id(x.where), x.name) if isinstance(x, GlobalName) else id(x)
        made = self._watched.get(key)
        if made is None:
            try:
                made = restorable(x)
            except Exception:  # an object that raises when it is read
                return
            if made is None:
                return
            self._watched[key] = made
        yield key
        stands = isinstance(x, GlobalName | types.CellType)  # a name is no step towards what it stands for
        if depth < REFERENCES_DEEP or stands:
            for y in made.inside():
                yield from self._walk(y, depth + (not stands))


def methods_of(kind: type[nn.Module]) -> list[types.FunctionType]:
    """`forward`, and of the user's classes the methods that it names, and those that they name."""

    def named(fn: Any) -> list[Any]:
        names = {k for code in codes_of(fn) for k in code.co_names} if is_users(kind) else ()
        found = [function_in(inspect.getattr_static(kind, k, None)) for k in names]
        return [x for x in found if isinstance(x, types.FunctionType) and not is_torchs(x)]

    return [f for f in reached([function_in(kind.forward)], named) if isinstance(f, types.FunctionType)]


def is_kept_for_itself(model: nn.Module, attribute: str) -> bool:
    """Whether the attribute belongs to torch's Module, or to the internals of an installed library."""
    path, _, leaf = attribute.rpartition(".")
    if leaf in _OF_EVERY_MODULE:
        return True
    owner = dict(model.named_modules()).get(path)  # None: the name of the attribute itself has dots
    where = getattr(sys.modules.get(type(owner).__module__), "__file__", None)
    return is_installed(where) and (leaf.startswith("_") or leaf == "config")
