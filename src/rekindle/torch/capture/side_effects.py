"""Effects that a captured call has beside its results, in Python objects outside of the graph: a planned step does not run
the code that has them.

Three sources: hooks on submodules and forwards that were put in the place of a submodule's own (by name, since they should
be called at each step), and forward itself. Tracing runs them all, on tensors without data; so what they can reach is noted
before, compared after, and put back.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from . import generators
from .callables import GlobalName, codes_of, global_names, names_in, prints_or_logs, references
from .containers import entries
from .hooks import HOOKS, is_torchs, user_hooks
from .restorable import LARGEST, Restorable, is_opaque, restorable

MOST = 20_000  # objects that are looked at
VARIABLES = ("the variable ", "the global ", "the argument ")  # how names in `dropped` begin that are no attributes
DEEP = 3  # references from the function or attribute that are followed
_OF_EVERY_MODULE = set(nn.Module().__dict__)


class SideEffects:
    """`with SideEffects(model) as effects:` trace. Afterwards everything is as before, and

    changed : names of hooks and replaced forwards that had effects.
    dropped : what forward itself changed, by name: objects in attributes, globals, variables of enclosing functions, arguments.
    drawn : what it drew random numbers from, by name: generators that are objects of their own.
    written : where it changed something: ids of containers and objects, and pairs of the id of an object's table and a name in
        it.

    arguments : objects that the call is given, by name.

    Attributes of the model's modules, and lists, dicts and sets in them, are for `Attributes`.
    """

    def __init__(self, model: nn.Module, arguments: Mapping[str, Any] | None = None):
        self.changed: list[str] = []
        self.dropped: list[str] = []
        self.drawn: list[str] = []
        self._arguments = arguments or {}
        self.written: set[Any] = set()
        self._own = {id(m): name for name, m in model.named_modules()}
        self._hooks = list(user_hooks(model))
        self._model = model
        self._watched: dict[Any, Restorable] = {}
        self._by_hook: list[set[Any]] = []  # keys of what is watched, that each reaches
        self._by_name: dict[str, set[Any]] = {}
        self._steps = 0

    def __enter__(self) -> SideEffects:
        self._by_hook = [set(self._reach(fn)) for _, _, fn in self._hooks]
        for kind in dict.fromkeys(type(m) for m in self._model.modules() if not is_torchs(type(m))):
            for name, holders in self._variables(kind.forward):
                self._by_name.setdefault(name, set()).update(holders)
        for path, m in self._model.named_modules():
            for k, x in m.__dict__.items():
                if k in _OF_EVERY_MODULE or k == "forward" or isinstance(x, torch.Tensor):
                    continue
                inside = [y for _, y in entries(x)] if isinstance(x, dict) else x if isinstance(x, list) else [x]
                holders = {h for y in inside[:LARGEST] for h in self._walk(y, 1)}
                self._by_name.setdefault(f"{path}.{k}".lstrip("."), set()).update(holders)
        for name, x in self._arguments.items():
            self._by_name.setdefault(f"{VARIABLES[2]}{name}", set()).update(self._walk(x, 1))
        for attribute in HOOKS:  # those of the model itself run at each step, planned or not: no words, but put back
            for fn in list((getattr(self._model, attribute, None) or {}).values()):
                if not is_torchs(fn):
                    deque(self._reach(fn), 0)
        return self

    def __exit__(self, *_: object) -> None:
        changed = {key for key, w in self._watched.items() if not w.same()}
        for key in changed:
            self.written.update(self._watched[key].places())
            self._watched[key].restore()
        hooked = set().union(*self._by_hook) if self._by_hook else set()
        self.changed = [
            name for (name, _, fn), holders in zip(self._hooks, self._by_hook, strict=True)
            if changed & holders or prints_or_logs(fn)
        ]  # fmt: skip
        drawn = {k for k in changed if isinstance(self._watched[k].x, generators.OTHERS)}
        self.drawn = [name for name, holders in self._by_name.items() if drawn & holders]
        self.drawn += [
            name for (name, _, _), holders in zip(self._hooks, self._by_hook, strict=True) if drawn & holders
        ]
        told: set[Any] = set()  # one name for what several modules share
        for name, holders in self._by_name.items():
            if changed & (holders - hooked) - told:
                self.dropped.append(name)
                told |= changed & holders
        self._watched.clear()

    def hooks_that_set(self, attribute: str) -> list[str]:
        """Names of the hooks whose code names that attribute of a module; where it holds hooks, of those that it holds: one
        of them takes itself off."""
        path, _, leaf = attribute.rpartition(".")
        if leaf in HOOKS:
            return [name for name, at, _ in self._hooks if at == path]
        return [name for name, _, fn in self._hooks if any(leaf in names_in(code) for code in codes_of(fn))]

    def _variables(self, fn: Any) -> Iterator[tuple[str, set[Any]]]:
        """Names of the globals and the variables around a function, and what can be watched behind each."""
        fn = getattr(fn, "__func__", fn)
        if not isinstance(fn, types.FunctionType):
            return
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            yield f"{VARIABLES[0]}{name}", set(self._walk(cell, 0))
        for name in sorted(global_names(fn)):
            yield f"{VARIABLES[1]}{name}", set(self._walk(GlobalName(fn.__globals__, name), 0))

    def _reach(self, fn: Any) -> Iterator[Any]:
        for x in references(fn):
            yield from self._walk(x, 0)

    def _walk(self, x: Any, depth: int) -> Iterator[Any]:
        """Watch what x holds, and what that holds; gives the keys of all."""
        self._steps += 1
        if len(self._watched) >= MOST or self._steps > 20 * MOST or id(x) in self._own or is_opaque(x):
            return
        if isinstance(x, types.FunctionType | types.MethodType | functools.partial):
            for y in references(x) if depth < DEEP and not is_torchs(x) else ():
                yield from self._walk(y, depth + 1)
            return
        key = (id(x.where), x.name) if isinstance(x, GlobalName) else id(x)
        made = self._watched.get(key)
        if made is None:
            try:
                made = restorable(x)
            except Exception:  # an object that does not let itself be read
                return
            if made is None:
                return
            self._watched[key] = made
        yield key
        if depth < DEEP:
            for y in made.inside():
                yield from self._walk(y, depth + 1)


def is_kept_for_itself(model: nn.Module, attribute: str) -> bool:
    """Whether torch's Module, or a library that is installed, keeps the attribute for its own ends."""
    path, _, leaf = attribute.rpartition(".")
    if leaf in _OF_EVERY_MODULE:
        return True
    owner = dict(model.named_modules()).get(path)  # None: an attribute whose own name has dots
    where = getattr(sys.modules.get(type(owner).__module__), "__file__", None) or ""
    return "-packages" in where and (leaf.startswith("_") or leaf == "config")
