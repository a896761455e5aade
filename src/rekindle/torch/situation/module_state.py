"""The guarded state of a module: keys of its values, and the places where they stand."""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch
from torch import nn

from ..tensors.fields import is_elsewhere, is_simple
from ..tensors.sharded import own_class
from .attribute_reads import INTERNAL
from .globals import Globals
from .hooks import HOOKS
from .values import Key, key_of
from .watch import Watch

_OF_TORCH = frozenset(dir(nn.Module)) - {"forward", "training"}


_KIND = attrgetter("requires_grad", "dtype", "shape", "device")


_MISSING: Any = object()


class ModuleState:
    """The guarded values of a module, as keys by name, and their places for a quick check.

    reads, ignored : as in `guards.Expected`.
    """

    def __init__(self, model: nn.Module, reads: Mapping[str, frozenset[str]] | None, ignored: frozenset[str]):
        self.keys: dict[str, Key] = {}
        self._reads, self._ignored = reads, ignored
        modules = dict(model.named_modules())
        self._watch = Watch({id(m) for m in modules.values()})
        self._modules = [m for m in modules.values() if m is not model]
        self._own: list[dict[str, Any]] = []  # `__dict__` of each submodule; the module's own holds the planned forward
        self._getters: list[Any] = []  # of the guarded names in each submodule, then in the module itself
        self._tables: list[dict[str, Any]] = []  # of parameters
        self._empty: list[Any] = []  # tables that were empty
        self._buffers: list[dict[str, Any]] = []
        self._held_by: list[tuple[dict[str, Any] | None, str]] = []  # places of tensors that are no parameters
        self._classes: dict[tuple[type, str], Any] = {}
        self._class_keys: dict[tuple[type, str], Key] = {}
        self._functions: dict[int, types.FunctionType] = {}
        self.keys["the submodules"] = tuple([(path, own_class(m)) for path, m in modules.items()])
        for path, m in modules.items():
            if m is not model and not isinstance(
                m, torch.jit.ScriptModule
            ):  # such a submodule is never called in a capture
                self._module(path, m, False)
        self._module("", model, True)
        self._parameters(model)
        held = [(model.__dict__ if d is None else d)[k] for d, k in self._held_by]
        self.keys["buffers that share memory"] = _sharing(held)
        self._read_globals(model)
        self.keys = {k: x for k, x in self.keys.items() if k not in ignored}
        self._watch.close()
        self._seen = self._look(model)

    def written(self, places: Collection[Any]) -> set[str]:
        """Names of the guarded globals in these places."""
        return self._globals.written(places) if places else set()

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
            and self._globals.unchanged()
        )

    def _look(self, model: nn.Module) -> tuple[list[int], list[Any], Any]:
        root = model.__dict__
        own = [*self._own, root]
        # A plan comes and goes in the module's own `__dict__`.
        lens = [*map(len, self._own), len(root) - ("forward" in root), *map(len, self._buffers)]
        values = [
            *map(type, self._modules),
            type(model),
            *chain.from_iterable([get(d) for get, d in zip(self._getters, own, strict=True)]),
        ]
        params = [p for p in chain.from_iterable([t.values() for t in self._tables]) if p is not None]
        held = [(root if d is None else d)[k] for d, k in self._held_by]
        tensors = (
            [*map(id, params)],
            [*map(type, params)],
            [*map(_KIND, params)],
            [p.stride() for p in params if p.layout is torch.strided],
            [None if t is None else (*_KIND(t), _strides(t)) for t in held],
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
        of_instance -= {"forward"} if is_root else set()  # the planned forward stands there
        for k in ({"forward", *(names or ())}) - of_instance - _OF_TORCH - {"*"}:
            self.keys[prefix + k] = self._of_class(own_class(m), k)

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
        self.keys[name] = None if t is None else (t.requires_grad, t.dtype, tuple(t.shape), _strides(t), t.device)
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
            which = order.setdefault(id(p), len(order))  # tied parameters have one number
            self.keys[f"the parameter {name}"] = (
                which,
                type(p),
                p.requires_grad,
                p.dtype,
                tuple(p.shape),
                _strides(p),
                p.device,
            )

    def _read_globals(self, model: nn.Module) -> None:
        """Guard the globals that forwards read, and plain class attributes whose names occur in their code."""
        self._globals = Globals(self._functions.values(), self._watch, self._ignored)
        self.keys |= self._globals.keys
        for kind in dict.fromkeys(k for m in [*self._modules, model] for k in type(m).__mro__ if not is_elsewhere(k)):
            for name, x in vars(kind).items():
                if name in self._globals.names and not name.startswith("__") and is_simple(x):
                    self._of_class(kind, name)
                    self.keys[f"{kind.__qualname__}.{name}"] = self._class_keys[kind, name]


def _strides(t: torch.Tensor) -> tuple[int, ...]:
    return t.stride() if t.layout is torch.strided else ()


def _sharing(tensors: list[torch.Tensor | None]) -> Key:
    """A key of which tensors share memory, since forward may write to one of them."""
    at = [t.untyped_storage()._cdata for t in tensors if t is not None and t.layout is torch.strided]
    first: dict[int, int] = {}
    return None if len(set(at)) == len(at) else tuple([first.setdefault(a, i) for i, a in enumerate(at)])


def _static(kind: type, name: str) -> Any:
    return next((k.__dict__[name] for k in kind.__mro__ if name in k.__dict__), _MISSING)
