"""Whether a module is still in the state in which a step of it was captured.

A captured step holds for the module as it was: the attributes that forward read (numbers, flags, configurations, functions,
and what lists and objects among them hold), the hooks and forwards of submodules, which parameters train, the shapes of
parameters and buffers, plain globals that forward names. A call while one of them differs is another step.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch
from torch import nn

from .reads import INTERNAL
from .side_effects import HOOKS, is_torchs
from .values import Key, Same, Watch, key_of

MOST_FUNCTIONS = 2_000  # whose globals are looked at
_OF_TORCH = frozenset(dir(nn.Module)) - {"forward", "training"}
_MISSING: Any = object()
_KIND = attrgetter("requires_grad", "dtype", "shape", "device")
_ELSEWHERE = sys.stdlib_module_names - {"__main__", "argparse", "types"} | {"numpy", "torch"}


@dataclass(frozen=True)
class Expected:
    """The state of a module that a captured step takes for granted.

    reads : path of a submodule -> names of the attributes that forward read there ("*": all); None: all of all submodules.
    ignored : attributes, by qualified name, that do not matter although forward reads them, since it changes them itself.
    keys : what is guarded, such as "drop.p" or "the hooks of encoder.0" -> a key of its value.
    """

    reads: Mapping[str, frozenset[str]] | None
    ignored: frozenset[str]
    keys: Mapping[str, Key]

    @classmethod
    def of(
        cls, model: nn.Module, reads: Mapping[str, Iterable[str]] | None = None, ignored: Iterable[str] = ()
    ) -> Expected:
        """The present state of the module."""
        names = None if reads is None else {path: frozenset(found) for path, found in reads.items()}
        left_out = frozenset(ignored)
        return cls(names, left_out, _State(model, names, left_out).keys)

    def differences(self, model: nn.Module) -> list[str]:
        """What differs, such as "drop.p"."""
        now = _State(model, self.reads, self.ignored).keys
        return [k for k in {**self.keys, **now} if self.keys.get(k, _MISSING) != now.get(k, _MISSING)]


class Guards:
    """Looks whether a module is in the expected state. It keeps submodules alive, but not the module itself."""

    def __init__(self, model: nn.Module, expected: Expected):
        self.expected = expected
        self._now: _State | None = None
        self.modules: tuple[int, ...] = ()
        self.hold(model)

    def let_go(self) -> None:
        """Keep nothing alive until the next look."""
        self._now, self.modules = None, ()

    def unchanged(self, model: nn.Module) -> bool:
        """Whether a quick look finds everything as at the last look that found no difference."""
        return self._now is not None and self._now.unchanged(model)

    def hold(self, model: nn.Module) -> bool:
        """Whether nothing differs. The second look at an unchanged module is a quick one."""
        if self._now is not None and self._now.unchanged(model):
            return True
        now = _State(model, self.expected.reads, self.expected.ignored)
        if now.keys != self.expected.keys:
            return False
        self._now = now
        self.modules = tuple(map(id, model.modules()))
        return True


class _State:
    """What is guarded, as keys, and where it stands."""

    def __init__(self, model: nn.Module, reads: Mapping[str, frozenset[str]] | None, ignored: frozenset[str]):
        self.keys: dict[str, Key] = {}
        self._reads, self._ignored = reads, ignored
        modules = dict(model.named_modules())
        self._watch = Watch({id(m) for m in modules.values()})
        self._modules = [m for m in modules.values() if m is not model]
        self._links: list[
            tuple[Mapping[str, Any], str, Any]
        ] = []  # attributes of globals: where each is found, and was
        self._own: list[dict[str, Any]] = []  # of submodules; that of the module itself holds the planned forward
        self._getters: list[Any] = []  # of these, then of the module itself
        self._tables: list[dict[str, Any]] = []  # parameters
        self._empty: list[Any] = []  # tables that may come to hold something
        self._buffers: list[dict[str, Any]] = []
        self._held_by: list[tuple[dict[str, Any] | None, str]] = []  # where the tensors stand that are no parameters
        self._classes: dict[tuple[type, str], Any] = {}
        self._class_keys: dict[tuple[type, str], Key] = {}
        self._globals: list[tuple[dict[str, Any], Any, tuple[Any, ...]]] = []
        self._functions: dict[int, types.FunctionType] = {}
        self.keys["the submodules"] = tuple([(path, type(m)) for path, m in modules.items()])
        for path, m in modules.items():
            if m is not model:
                self._module(path, m, False)
        self._module("", model, True)
        self._parameters(model)
        held = [(model.__dict__ if d is None else d)[k] for d, k in self._held_by]
        self.keys["buffers that share memory"] = _sharing(held)
        self._read_globals(model)
        self._watch.close()
        self._seen = self._look(model)

    def unchanged(self, model: nn.Module) -> bool:
        """Whether every guarded value is the very same object as before."""
        try:
            now = self._look(model)
        except (KeyError, AttributeError):
            return False
        lens, values, tensors = self._seen
        return (
            now[0] == lens
            and len(now[1]) == len(values)
            and all(map(is_, now[1], values))
            and now[2] == tensors
            and not any(self._empty)
            and self._watch.unchanged()
            and all(getattr(c, name, _MISSING) is x for (c, name), x in self._classes.items())
            and all(all(map(is_, get(table), held)) for table, get, held in self._globals)
            and all(table.get(name, _MISSING) is x for table, name, x in self._links)
        )

    def _look(self, model: nn.Module) -> tuple[list[int], list[Any], Any]:
        root = model.__dict__
        own = [*self._own, root]
        lens = [*map(len, own), *map(len, self._buffers)]
        values = [
            *map(type, self._modules),
            type(model),
            *chain.from_iterable([get(d) for get, d in zip(self._getters, own, strict=True)]),
        ]
        params = [p for p in chain.from_iterable([t.values() for t in self._tables]) if p is not None]
        held = [(root if d is None else d)[k] for d, k in self._held_by]
        tensors = (
            [*map(id, params)],
            [*map(_KIND, params)],
            [None if t is None else _KIND(t) for t in held],
            _sharing(held),
        )
        return lens, values, tensors

    def _module(self, path: str, m: nn.Module, is_root: bool) -> None:
        own, prefix = m.__dict__, f"{path}." if path else ""
        names = None if self._reads is None else self._reads.get(path, frozenset())
        everything = names is None or "*" in names
        got = ["_parameters", "_buffers", "_modules"]
        for k, x in own.items():
            if k in INTERNAL or not (everything or k in names) or prefix + k in self._ignored:  # type: ignore[operator]
                continue
            if is_root and k == "forward":
                continue
            if isinstance(x, torch.Tensor):
                self._tensor(prefix + k, None if is_root else own, k, x)
                continue
            got.append(k)
            self.keys[prefix + k] = key_of(x, self._watch)
            self._function(x)
        for k, t in m._buffers.items():
            if everything or k in names:  # type: ignore[operator]
                self._tensor(prefix + k, m._buffers, k, t)
        if not is_root:
            got += HOOKS
            self._own.append(own)
            self._hooks(path, m)
        self._getters.append(itemgetter(*got))
        self._buffers.append(m._buffers)
        (self._tables if m._parameters else self._empty).append(m._parameters)
        if m._modules:
            self._watch.table(m._modules)
        else:
            self._empty.append(m._modules)
        of_instance = own.keys() | m._parameters.keys() | m._buffers.keys() | m._modules.keys()
        of_instance -= {"forward"} if is_root else set()  # there the planned forward stands
        for k in ({"forward", *(names or ())}) - of_instance - _OF_TORCH - {"*"}:
            self.keys[prefix + k] = self._of_class(type(m), k)

    def _of_class(self, kind: type, k: str) -> Key:
        if (kind, k) not in self._classes:
            x = _static(kind, k)
            self._classes[kind, k] = getattr(kind, k, _MISSING)
            self._class_keys[kind, k] = None if x is _MISSING else key_of(x, self._watch)
            self._function(x)
        return self._class_keys[kind, k]

    def _function(self, x: Any) -> None:
        f = getattr(x, "__func__", x)
        f = getattr(f, "fget", f)
        if isinstance(f, types.FunctionType):
            self._functions[id(f)] = f

    def _tensor(self, name: str, table: dict[str, Any] | None, k: str, t: torch.Tensor | None) -> None:
        self.keys[name] = None if t is None else (t.requires_grad, t.dtype, tuple(t.shape), t.device)
        self._held_by.append((table, k))

    def _hooks(self, path: str, m: nn.Module) -> None:
        found = []
        for kind in HOOKS:
            table = getattr(m, kind)
            if table:
                self._watch.table(table)
                found.append((kind, tuple([key_of(h, self._watch) for h in table.values()])))
            else:
                self._empty.append(table)
        if found:
            self.keys[f"the hooks of {path}"] = tuple(found)

    def _parameters(self, model: nn.Module) -> None:
        order: dict[int, int] = {}
        for name, p in model.named_parameters(remove_duplicate=False):
            which = order.setdefault(id(p), len(order))  # parameters that are tied stay tied
            self.keys[f"the parameter {name}"] = (which, p.requires_grad, p.dtype, tuple(p.shape), p.device)

    def _read_globals(self, model: nn.Module) -> None:
        """Plain globals and functions that forwards name, what they read of modules, classes and other objects among the
        globals, plain attributes of the modules' classes; and all that of the functions they call, but for other libraries'."""
        done: set[int] = set()
        used: set[str] = set()
        pending = [f for f in self._functions.values() if not is_torchs(f)]
        while pending and len(done) < MOST_FUNCTIONS:
            f = pending.pop()
            if id(f.__code__) in done:
                continue
            done.add(id(f.__code__))
            table = f.__globals__
            names = [k for k in dict.fromkeys(_names(f.__code__)) if k in table]
            used.update(_names(f.__code__))
            pending += [g for k in names if _is_followed(g := table[k], table)]
            plain = [k for k in names if _is_plain(table[k]) or isinstance(table[k], _FUNCTIONS)]
            if plain:
                get = itemgetter(*plain, plain[0])
                self._globals.append((table, get, get(table)))
                for k in plain:
                    x = table[k]
                    named = f"the global {table.get('__name__', '?')}.{k}"
                    self.keys[named] = Same(x) if isinstance(x, _FUNCTIONS) else key_of(x, self._watch)
            for way in _ways(f.__code__):
                if (x := table.get(way[0])) is not None and not _is_plain(x) and not isinstance(x, _FUNCTIONS):
                    pending += [
                        g for g in self._follow(x, way, str(table.get("__name__", "?"))) if _is_followed(g, table)
                    ]
        for kind in dict.fromkeys(k for m in [*self._modules, model] for k in type(m).__mro__ if not _is_elsewhere(k)):
            for name, x in vars(kind).items():
                if name in used and not name.startswith("__") and _is_plain(x):
                    self._of_class(kind, name)
                    self.keys[f"{kind.__qualname__}.{name}"] = self._class_keys[kind, name]

    def _follow(self, x: Any, way: tuple[str, ...], where: str) -> Iterator[types.FunctionType]:
        """Guard what code reads from a global object, attribute by attribute; gives the functions met."""
        for i, name in enumerate(way[1:], 2):
            if _is_elsewhere(x):
                return
            table = _holder(x, name)
            if table is None:
                return
            x = table[name]
            self._links.append((table, name, x))
            if isinstance(x, staticmethod | classmethod):
                x = x.__func__
            if isinstance(x, _FUNCTIONS) or _is_plain(x):
                is_function = isinstance(x, _FUNCTIONS)
                self.keys[f"the global {where}.{'.'.join(way[:i])}"] = (
                    Same(x) if is_function else key_of(x, self._watch)
                )
                if isinstance(x, types.FunctionType):
                    yield x
                return
        if isinstance(x, types.SimpleNamespace) or dataclasses.is_dataclass(x) and not isinstance(x, type):
            self.keys[f"the global {where}.{'.'.join(way)}"] = key_of(x, self._watch)


def _is_plain(x: Any) -> bool:
    """Whether forward may compute with it: no function, class, module or other object."""
    return isinstance(x, bool | int | float | complex | str | type(None) | torch.dtype | tuple | list | dict | set)


_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_LIBRARY = os.path.dirname(os.__file__)


def _sharing(tensors: list[torch.Tensor | None]) -> Key:
    """Which of them share memory: forward may write to one of them."""
    at = [t.untyped_storage()._cdata for t in tensors if t is not None and t.layout is torch.strided]
    first: dict[int, int] = {}
    return None if len(set(at)) == len(at) else tuple([first.setdefault(a, i) for i, a in enumerate(at)])


def _is_followed(g: Any, table: Mapping[str, Any]) -> bool:
    """Whether it is a function of the same file, or of the user's."""
    if not isinstance(g, types.FunctionType):
        return False
    return (
        g.__globals__ is table
        or not g.__code__.co_filename.startswith((_LIBRARY, "<"))
        and ("-packages" not in g.__code__.co_filename)
    )


def _is_elsewhere(x: Any) -> bool:
    """Whether a module, class or object is Python's own, torch's or NumPy's, which nobody sets a number in."""
    name = x.__name__ if isinstance(x, types.ModuleType) else (x if isinstance(x, type) else type(x)).__module__
    return str(name).partition(".")[0] in _ELSEWHERE


def _holder(x: Any, name: str) -> Mapping[str, Any] | None:
    """The table in which Python finds the attribute; None: code gives it."""
    own = getattr(x, "__dict__", None)
    if not isinstance(x, type) and isinstance(own, dict) and name in own:
        return own
    kinds = x.__mro__ if isinstance(x, type) else type(x).__mro__
    return next((k.__dict__ for k in kinds if name in k.__dict__), None)


@functools.lru_cache(maxsize=4096)
def _ways(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """Names that code looks up outside of its variables, each with the attributes it goes on to: ("config", "gain")."""
    found: dict[tuple[str, ...], None] = {}
    way: tuple[str, ...] = ()
    for i in dis.get_instructions(code):
        if way and i.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            way = (*way, i.argval)
            continue
        if way:
            found[way] = None
        way = (i.argval,) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ()
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            found |= dict.fromkeys(_ways(c))
    return tuple(found)


def _names(code: types.CodeType) -> Iterator[str]:
    """Global names in a function and in those that it defines."""
    yield from code.co_names
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from _names(c)


def _static(kind: type, name: str) -> Any:
    return next((k.__dict__[name] for k in kind.__mro__ if name in k.__dict__), _MISSING)
