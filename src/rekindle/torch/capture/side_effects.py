"""Effects that a captured call has beside its results, in Python objects outside of the graph: a planned step does not run
the code that has them.

Three sources: hooks on submodules and forwards that were put in the place of a submodule's own (by name, since they should
be called at each step), and forward itself. Tracing runs them all, on tensors without data; so what they can reach is noted
before, compared after, and put back.
"""

from __future__ import annotations

import builtins
import dis
import functools
import logging
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from . import generators, tree
from .contents import content, entries, refill
from .module_paths import printable

MOST = 20_000  # objects that are looked at
LARGEST = 100_000  # entries of a container, or elements of a tensor, that are kept to be put back
VARIABLES = ("the variable ", "the global ", "the argument ")  # how names in `dropped` begin that are no attributes
DEEP = 3  # references from the function or attribute that are followed
HOOKS = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
}
_OPAQUE = (type, types.ModuleType, logging.Logger, logging.Handler, torch.dtype, torch.device, torch.Generator,
           torch.utils.hooks.RemovableHandle, *tree.PLAIN)  # fmt: skip
_OF_EVERY_MODULE = set(nn.Module().__dict__)
_TOLD = {"print", "log", "logger", "logging", "warnings"}  # globals that a hook tells somebody by
_TELLS = {"log", "info", "warning", "warn", "debug", "error", "write", "writelines", "add_scalar"}  # methods
_NUMERIC = {"torch", "math", "np", "numpy", "F"}  # whose `log` is a logarithm


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
        self._hooks = list(_hooks(model))
        self._model = model
        self._watched: dict[Any, _Watched] = {}
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
            if changed & holders or _speaks(fn)
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
        return [name for name, _, fn in self._hooks if any(leaf in _names_in(code) for code in _codes(fn))]

    def _variables(self, fn: Any) -> Iterator[tuple[str, set[Any]]]:
        """Names of the globals and the variables around a function, and what can be watched behind each."""
        fn = getattr(fn, "__func__", fn)
        if not isinstance(fn, types.FunctionType):
            return
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            yield f"{VARIABLES[0]}{name}", set(self._walk(cell, 0))
        for name in sorted(_global_names(fn)):
            yield f"{VARIABLES[1]}{name}", set(self._walk(_Global(fn.__globals__, name), 0))

    def _reach(self, fn: Any) -> Iterator[Any]:
        for x in _references(fn):
            yield from self._walk(x, 0)

    def _walk(self, x: Any, depth: int) -> Iterator[Any]:
        """Watch what x holds, and what that holds; gives the keys of all."""
        self._steps += 1
        if len(self._watched) >= MOST or self._steps > 20 * MOST or id(x) in self._own or _is_opaque(x):
            return
        if isinstance(x, types.FunctionType | types.MethodType | functools.partial):
            for y in _references(x) if depth < DEEP and not is_torchs(x) else ():
                yield from self._walk(y, depth + 1)
            return
        key = (id(x.where), x.name) if isinstance(x, _Global) else id(x)
        made = self._watched.get(key)
        if made is None:
            try:
                made = _watch(x)
            except Exception:  # an object that does not let itself be read
                return
            if made is None:
                return
            self._watched[key] = made
        yield key
        if depth < DEEP:
            for y in made.inside():
                yield from self._walk(y, depth + 1)


def _is_opaque(x: Any) -> bool:
    """Whether it is nothing to look into: a plain value, a class, or something that cannot even be asked (a dead proxy)."""
    try:
        return isinstance(x, _OPAQUE)
    except Exception:
        return True


def _hooks(model: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """(name in words, path of its module, function) of the user's hooks on submodules."""
    for path, m in model.named_modules():
        if m is model:
            continue
        for attribute, kind in HOOKS.items():
            for fn in list((getattr(m, attribute, None) or {}).values()):
                if not is_torchs(fn):
                    yield f"the {kind} {_called(fn)} of {printable(path)}", path, fn
        own = m.__dict__.get("forward")
        if own is not None and not is_torchs(own):
            yield f"the forward {_called(own)} that replaces the one of {printable(path)}", path, own
    for attribute, kind in HOOKS.items():
        for fn in list(getattr(torch_module, f"_global{attribute}", {}).values()):
            if not is_torchs(fn):
                yield f"the {kind} {_called(fn)} of all modules", "", fn


def is_torchs(fn: Any) -> bool:
    """Whether torch brought it (spectral norm, pruning, …), or this library."""
    fn = getattr(fn, "__func__", fn)
    where = getattr(fn, "__module__", None) or type(fn).__module__
    return str(where).split(".")[0] in ("torch", "rekindle")


def is_kept_for_itself(model: nn.Module, attribute: str) -> bool:
    """Whether torch's Module, or a library that is installed, keeps the attribute for its own ends."""
    path, _, leaf = attribute.rpartition(".")
    if leaf in _OF_EVERY_MODULE:
        return True
    owner = dict(model.named_modules()).get(path)  # None: an attribute whose own name has dots
    where = getattr(sys.modules.get(type(owner).__module__), "__file__", None) or ""
    return "-packages" in where and (leaf.startswith("_") or leaf == "config")


def _called(fn: Any) -> str:
    code = next(_codes(fn), None)
    name = getattr(fn, "__name__", None) or getattr(getattr(fn, "func", None), "__name__", None) or type(fn).__name__
    return name if code is None else f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def _functions(fn: Any) -> Iterator[types.FunctionType]:
    """The Python functions that run when it is called, as far as can be told."""
    if isinstance(fn, functools.partial):
        yield from _functions(fn.func)
    elif isinstance(fn, types.MethodType):
        yield from _functions(fn.__func__)
    elif isinstance(fn, types.FunctionType):
        yield fn
    elif not isinstance(fn, types.BuiltinFunctionType | type):
        call = getattr(type(fn), "__call__", None)  # noqa: B004
        if isinstance(call, types.FunctionType):
            yield call


def _codes(fn: Any) -> Iterator[types.CodeType]:
    """The code that runs when it is called, functions inside included."""
    stack = [f.__code__ for f in _functions(fn)]
    while stack:
        code = stack.pop()
        yield code
        stack += [c for c in code.co_consts if isinstance(c, types.CodeType)]


def _names_in(code: types.CodeType) -> set[str]:
    """Names of attributes and globals in it."""
    return {*code.co_names, *(c for c in code.co_consts if isinstance(c, str))}


def _global_names(fn: types.FunctionType) -> set[str]:
    return {k for code in _codes(fn) for k in code.co_names if k in fn.__globals__ and not hasattr(builtins, k)}


def _references(fn: Any) -> list[Any]:
    """Objects that a callable holds: cells, defaults, the object that it is a method of, globals that it names, …"""
    if isinstance(fn, functools.partial):
        return [*_references(fn.func), *fn.args, *fn.keywords.values()]
    if isinstance(fn, types.MethodType):
        return [fn.__self__, *_references(fn.__func__)]
    if not isinstance(fn, types.FunctionType):
        return [fn, *(x for f in _functions(fn) for x in _references(f))]
    inner = getattr(fn, "__wrapped__", None)
    return [
        *(fn.__closure__ or ()), *(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values(), fn.__dict__,
        *(_Global(fn.__globals__, k) for k in _global_names(fn)), *([inner] if inner is not None else []),
    ]  # fmt: skip


def _is_full(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _speaks(fn: Any) -> bool:
    """Whether its code prints, logs or writes."""
    for code in _codes(fn):
        arguments = code.co_varnames[: code.co_argcount]
        before: Any = None
        for i in dis.get_instructions(code):
            if i.opname in ("LOAD_GLOBAL", "LOAD_NAME") and i.argval in _TOLD:
                return True
            if i.opname in ("LOAD_METHOD", "LOAD_ATTR") and i.argval in _TELLS:
                source = before.argval if before is not None and before.opname.startswith("LOAD_") else None
                of_a_tensor = source is None or source in _NUMERIC or source in arguments and source != "self"
                if i.argval != "log" or not of_a_tensor:
                    return True
            before = i
    return False


class _Global:
    """A name among a function's globals."""

    def __init__(self, where: dict[str, Any], name: str):
        self.where, self.name = where, name


class _Watched:
    """Something that can change: what it is now, and how to put it back."""

    def __init__(self, x: Any, read: Callable[[], Any], write: Callable[[Any], None]):
        self.x, self._read, self._write = x, read, write
        self.before = read()

    def same(self) -> bool:
        return _same(self._read(), self.before)

    def restore(self) -> None:
        self._write(self.before)

    def places(self) -> list[Any]:
        """Where it changed."""
        held, now = getattr(self.x, "__dict__", None), self._read()
        if not isinstance(held, dict) or not isinstance(now, dict) or isinstance(self.x, _Global | dict):
            return [id(self.x)]
        names = now.keys() | self.before.keys()
        named = [k for k in names if not _same_entry(now.get(k, _NOTHING), self.before.get(k, _NOTHING))]
        return [id(self.x), *((id(held), k) for k in named)]

    def inside(self) -> list[Any]:
        """The objects that it holds."""
        x = self.before
        if isinstance(self.x, _Global | types.CellType):
            return [x]
        if isinstance(x, dict):
            return list(x.values())
        return list(x) if isinstance(x, list | set) else []


_NOTHING: Any = object()


def _watch(x: Any) -> _Watched | None:
    if isinstance(x, _Global):
        where, name = x.where, x.name
        if isinstance(where[name], _OPAQUE) and not isinstance(where[name], tree.PLAIN):
            return None  # modules and classes
        return _Watched(x, lambda: where.get(name, _NOTHING), lambda old: where.__setitem__(name, old))
    if isinstance(x, types.CellType):

        def set_cell(old: Any) -> None:
            if old is not _NOTHING:
                x.cell_contents = old

        return _Watched(x, lambda: x.cell_contents if _is_full(x) else _NOTHING, set_cell)
    if isinstance(x, torch.Tensor):
        return _tensor(x)
    if isinstance(x, generators.OTHERS):
        was = generators.state(x)
        return _Watched(x, lambda: generators.key(generators.state(x)), lambda _: generators.set_state(x, was))
    if isinstance(x, list | deque | dict | set) and len(x) <= LARGEST:
        return _Watched(x, lambda: content(x), lambda old: refill(x, old))
    if isinstance(x, tuple):
        return _Watched(x, lambda: list(x), lambda old: None)
    if isinstance(vars_ := getattr(x, "__dict__", None), dict) and not is_torchs(type(x)):

        def reset(old: dict[str, Any]) -> None:
            vars_.clear()
            vars_.update(old)

        return _Watched(x, lambda: dict(vars_), reset)
    return None


def _tensor(x: torch.Tensor) -> _Watched | None:
    """A tensor that is written to."""
    if type(x) not in (torch.Tensor, nn.Parameter) or x.is_inference():
        return None
    copied = x.detach().clone() if x.layout is torch.strided and x.numel() <= LARGEST else None

    def put_back(version: int) -> None:
        if copied is not None:
            with torch.no_grad():
                x.copy_(copied)
            # a graph that saved it finds it as it was
            torch._C._autograd._unsafe_set_version_counter((x,), (version,))

    return _Watched(x, lambda: x._version, put_back)


def _same(x: Any, y: Any) -> bool:
    """Whether the contents of something are what they were; plain values by what they are, all else by identity."""
    if isinstance(x, dict) and isinstance(y, dict):
        return len(x) == len(y) and all(
            k is j and _same_entry(a, b) or k == j and _same_entry(a, b)
            for (k, a), (j, b) in zip(x.items(), y.items(), strict=True)
        )
    if isinstance(x, list) and isinstance(y, list):
        return len(x) == len(y) and all(map(_same_entry, x, y))
    if isinstance(x, set) and isinstance(y, set):
        return len(x) == len(y) and {id(a) for a in x} == {id(b) for b in y} or x == y
    return _same_entry(x, y)


def _same_entry(x: Any, y: Any) -> bool:
    return x is y or type(x) is type(y) and isinstance(x, tree.PLAIN) and (x == y or x != x and y != y)
