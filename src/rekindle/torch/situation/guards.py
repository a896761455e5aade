"""Whether a module is still in the state in which a step of it was captured.

A captured step is valid for one state of the module: the attributes that forward read (numbers, flags, configurations,
functions, with the contents of lists and objects among them), the hooks and forwards of submodules, which parameters train, the
shapes of parameters and buffers, and the globals that forward reads. A call in another state needs another step. `Reads`
records which attributes forward reads while it is captured.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_, itemgetter
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from ...saying.frames import is_users
from ..tensors.objects import changeable, function_in, is_elsewhere, is_simple, without_plan
from ..tensors.sharded import own_class
from .callables import HOOKS
from .globals import Globals
from .numbers import holder_of
from .values import Key, Watch, apart_from_identity, key_of

# Attributes that torch itself uses. Guards check parameters, buffers, submodules and hooks in any case.
INTERNAL = frozenset(nn.Module().__dict__) - {"training"}
_HERE = (nn.Module.__getattr__.__code__.co_filename,)  # torch reads `__dict__` for itself there
_OF_TORCH = frozenset(dir(nn.Module)) - {"forward", "training"}
_KIND = attrgetter("requires_grad", "dtype", "shape", "device")
_STRIDED = torch.strided  # looked up once: each call asks for the layout of each tensor
_MISSING: Any = object()


class ModuleState:
    """The guarded values of a module, as keys by name, and their places for a quick check.

    reads, ignored : as in `Expected`. apart : as in `Globals`.
    """

    def __init__(
        self,
        model: nn.Module,
        reads: Mapping[str, frozenset[str]] | None,
        ignored: frozenset[str],
        apart: Collection[types.CodeType] | None = None,
    ):
        self.keys: dict[str, Key] = {}
        self._reads, self._ignored, self._apart = reads, ignored, apart
        modules = dict(model.named_modules())
        self.watch = Watch({id(m) for m in modules.values()})
        self._modules = [m for m in modules.values() if m is not model]
        self._of_root: Any = None  # getter of the guarded names in the module itself, whose `__dict__` is not kept
        self._of_class_only: set[str] = set()  # guarded names that the module itself has not, but its class
        self._tables: list[dict[str, Any]] = []  # of parameters
        self._held_by: list[tuple[dict[str, Any] | None, str]] = []  # places of tensors that are no parameters
        self._classes: dict[tuple[type, str], Any] = {}
        self._class_keys: dict[tuple[type, str], Key] = {}
        self.functions: dict[int, types.FunctionType] = {}
        self.keys["the submodules"] = tuple([(path, own_class(m)) for path, m in modules.items()])
        for path, m in modules.items():
            # A submodule of TorchScript is never called in a capture.
            if m is not model and not isinstance(m, torch.jit.ScriptModule):
                self._module(path, m, False)
        self._module("", model, True)
        self._parameters(model)
        held = [(model.__dict__ if d is None else d)[k] for d, k in self._held_by]
        self.keys["buffers that share memory"] = _sharing(held)
        self._read_globals(model)
        self.keys = {k: x for k, x in self.keys.items() if k not in ignored}
        self.watch.close()
        self._seen = self._look(model)

    def unchanged(self, model: nn.Module) -> bool:
        """Whether every guarded value is the very same object as before."""
        try:
            now = self._look(model)
        except (KeyError, AttributeError):
            return False
        size, values, tensors = self._seen
        return (
            now[0] == size
            and len(now[1]) == len(values)
            and all(map(is_, now[1], values))
            and now[2] == tensors
            and model.__dict__.keys().isdisjoint(self._of_class_only)
            and self.watch.unchanged()
            and all(getattr(c, name, _MISSING) is x for (c, name), x in self._classes.items())
        )

    def differences(self, model: nn.Module) -> list[str]:
        """Names of the values that differ now, such as "drop.p"."""
        return Expected(self._reads, self._ignored, self.keys).differences(model)

    def _look(self, model: nn.Module) -> tuple[int, list[Any], Any]:
        root = model.__dict__
        values = [*map(type, self._modules), type(model), *self._of_root(root)]
        params = [p for p in chain.from_iterable([t.values() for t in self._tables]) if p is not None]
        held = [(root if d is None else d)[k] for d, k in self._held_by]
        tensors = (
            [*map(id, params)],
            [*map(type, params)],
            [*map(_KIND, params)],
            [p.stride() for p in params if p.layout is _STRIDED],
            [*map(_kind, held)],
            _sharing(held),
        )
        return len(root) - ("forward" in root), values, tensors  # a plan comes and goes in the module's own `__dict__`

    def _module(self, path: str, m: nn.Module, is_root: bool) -> None:
        own, prefix = m.__dict__, f"{path}." if path else ""
        names = None if self._reads is None else self._reads.get(path, frozenset())
        of_class = {"forward", *(_methods(own_class(m)) if names is None else names)} - _OF_TORCH - {"*"}
        everything = names is None or "*" in names
        got = ["_parameters", "_buffers", "_modules", *(() if is_root else {"forward"} & own.keys())]
        held = without_plan(own)  # a part inside of this module may be planned by itself
        for k, x in held.items():
            if k in INTERNAL or not (everything or k in names) or prefix + k in self._ignored:  # type: ignore[operator]
                continue
            if is_root and k == "forward":
                continue
            if isinstance(x, torch.Tensor):
                self._tensor(prefix + k, None if is_root else own, k, x)
                continue
            got.append(k)
            self.keys[prefix + k] = key_of(x, self.watch)
            self._function(x)
        for k, t in m._buffers.items():
            if everything or k in names:  # type: ignore[operator]
                self._tensor(prefix + k, m._buffers, k, t)
        if is_root:
            self._of_root = itemgetter(*got)
        else:
            self.watch.part(own, [*got, *HOOKS])
            self._hooks(path, m)
        self.watch.part(m._buffers, ())
        (self._tables if m._parameters else self.watch.tables).append(m._parameters)
        self.watch.tables.append(m._modules)
        of_instance = held.keys() | m._parameters.keys() | m._buffers.keys() | m._modules.keys()
        of_instance -= {"forward"} if is_root else set()  # the planned forward stands there
        for k in of_class - of_instance:
            self.keys[prefix + k] = self._of_class(own_class(m), k)
            if k != "forward":  # for which the number of all names is enough, and quicker
                self._of_class_only.add(k) if is_root else self.watch.lack(own, k)
        for k in of_class & of_instance:
            if hasattr(own_class(m), k):  # a function that stands in its place may call it
                self.keys[f"{prefix}{k} of its class"] = self._of_class(own_class(m), k)

    def _of_class(self, kind: type, k: str) -> Key:
        if (kind, k) not in self._classes:
            owner = next((c for c in kind.__mro__ if k in c.__dict__), None)
            x = _MISSING if owner is None else owner.__dict__[k]
            self.watch.variables += [] if owner is None else [(owner, k)]
            self._classes[kind, k] = getattr(kind, k, _MISSING)
            self._class_keys[kind, k] = None if x is _MISSING else key_of(x, self.watch)
            self._function(x)
        return self._class_keys[kind, k]

    def _function(self, x: Any) -> None:
        f = function_in(x)
        if isinstance(f, types.FunctionType):
            self.functions[id(f)] = f

    def _tensor(self, name: str, table: dict[str, Any] | None, k: str, t: torch.Tensor | None) -> None:
        self.keys[name] = _kind(t)
        self._held_by.append((table, k))

    def _hooks(self, path: str, m: nn.Module) -> None:
        found = []
        for kind in HOOKS:
            table = getattr(m, kind)
            self.watch.tables.append(table)
            if table:
                found.append((kind, tuple([key_of(h, self.watch) for h in table.values()])))
        if found:
            self.keys[f"the hooks of {path}"] = tuple(found)

    def _parameters(self, model: nn.Module) -> None:
        order: dict[int, int] = {}
        for name, p in model.named_parameters(remove_duplicate=False):
            which = order.setdefault(id(p), len(order))  # tied parameters have one number
            self.keys[f"the parameter {name}"] = (which, type(p), _kind(p))

    def _read_globals(self, model: nn.Module) -> None:
        """Guard the globals that forwards read, and plain class attributes whose names occur in their code."""
        self.globals = Globals(self.functions.values(), self.watch, self._ignored, self._apart)
        self.keys |= self.globals.keys
        for name, t in [*model.named_parameters(), *model.named_buffers()]:
            if found := vars(t).keys() & self.globals.names:
                self.watch.part(vars(t), sorted(found))
                self.keys |= {f"{name}.{k}": key_of(vars(t)[k], self.watch) for k in found}
        for kind in dict.fromkeys(k for m in [*self._modules, model] for k in type(m).__mro__ if not is_elsewhere(k)):
            for name, x in vars(kind).items():
                if name in self.globals.names and not name.startswith("__") and is_simple(x):
                    self.keys[f"{kind.__qualname__}.{name}"] = self._of_class(kind, name)


def _methods(kind: type) -> list[str]:
    """Names of the methods and properties of a class and its bases, but for those of Python itself and torch."""
    kinds = (types.FunctionType, staticmethod, classmethod, property)
    return [k for c in kind.__mro__ if not is_elsewhere(c) for k, x in vars(c).items() if isinstance(x, kinds)]


def _kind(t: torch.Tensor | None) -> Key:
    """A key of the properties of a tensor on which the graph depends."""
    return None if t is None else (*_KIND(t), t.stride() if t.layout is _STRIDED else ())


def _sharing(tensors: list[torch.Tensor | None]) -> Key:
    """A key of which tensors share memory, since forward may write to one of them."""
    at = [t.untyped_storage()._cdata for t in tensors if t is not None and t.layout is _STRIDED]
    first: dict[int, int] = {}
    return None if len(set(at)) == len(at) else tuple([first.setdefault(a, i) for i, a in enumerate(at)])


class InBackward(NamedTuple):
    """The user's code that a step runs in backward: autograd Functions, and hooks that forward hangs on tensors.

    functions : the code, without its closures. held : ids of objects that forward leaves to it. reads : path of a submodule ->
    names of the attributes that it read.
    """

    functions: Sequence[types.FunctionType] = ()
    held: Collection[int] = ()
    reads: Mapping[str, Collection[str]] = types.MappingProxyType({})

    def values(self, model: nn.Module, every: ModuleState, ignored: frozenset[str]) -> frozenset[str]:
        """As `Expected.late`. every : all that forward and this code read."""
        found = {f"{path}.{k}".lstrip(".") for path, names in self.reads.items() for k in names}
        found |= Globals(self.functions, Watch(), ignored).keys.keys()
        # Variables of enclosing functions count in the keys of forward's functions that have them too.
        free = {k for f in self.functions for k in f.__code__.co_freevars}
        code = {f.__name__ for f in every.functions.values() if not free.isdisjoint(f.__code__.co_freevars)}
        found |= {k for k in every.keys if k.rpartition(".")[2] in code}
        for path, m in model.named_modules():
            found |= {f"{path}.{k}".lstrip(".") for k, x in vars(m).items() if self._hold(x)}
        whole = [k for k in every.globals.whole.values() if self._hold(getattr(*holder_of(model, k), None))]
        return frozenset(found | {k for k in every.keys for text in whole if k == text or k.startswith(f"{text}.")})

    def _hold(self, x: Any) -> bool:
        return bool(self.held) and not changeable([x]).isdisjoint(self.held)


NOTHING = InBackward()


@dataclass(frozen=True)
class Expected:
    """The state of a module for which a captured step is valid.

    reads : path of a submodule -> names of the attributes that forward read there ("*": all); None: all of all submodules.
    ignored : attributes, by qualified name, and globals, as named in `keys`, that forward reads and changes itself.
    keys : name of a guarded value, such as "drop.p" or "the hooks of encoder.0" -> a key of the value.
    late : names of the values that code in backward reads. early : those that forward reads; None: all.
    """

    reads: Mapping[str, frozenset[str]] | None
    ignored: frozenset[str]
    keys: Mapping[str, Key]
    late: frozenset[str] = frozenset()
    early: frozenset[str] | None = None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        reads: Mapping[str, Iterable[str]] | None = None,
        ignored: Iterable[str] = (),
        written: Collection[Any] = (),
        backward: InBackward = NOTHING,
    ) -> Expected:
        """The present state of the module.

        written : places outside of it that forward changes itself, as in `SideEffects.written`; they are ignored too.
        backward : the code that runs in backward.
        """
        early = {path: frozenset(found) for path, found in (reads or {}).items()}
        names = {
            path: early.get(path, frozenset()).union(backward.reads.get(path, ()))
            for path in {**early, **backward.reads}
        }
        every, left_out = None if reads is None else names, frozenset(ignored)
        state = ModuleState(model, every, left_out)
        if more := state.globals.written(written):
            left_out |= more
            state = ModuleState(model, every, left_out)
        hung = [*state.globals.hung()]  # which forward may call too
        if not (backward.functions or backward.reads or hung):
            return cls(every, left_out, state.keys)
        of_forward = ModuleState(model, early, left_out, {f.__code__ for f in backward.functions}).keys
        late = backward._replace(functions=[*backward.functions, *hung]).values(model, state, left_out)
        return cls(every, left_out, state.keys, late, frozenset(of_forward))

    def differences(self, model: nn.Module) -> list[str]:
        """Names of the values that differ now, such as "drop.p"."""
        now = ModuleState(model, self.reads, self.ignored).keys
        return [k for k in {**self.keys, **now} if self.keys.get(k, _MISSING) != now.get(k, _MISSING)]

    def made_anew(self, model: nn.Module) -> bool:
        """Whether the values that differ now do so only by the objects in them, as where each call makes an object anew."""
        now = ModuleState(model, self.reads, self.ignored).keys
        apart, before = (apart_from_identity(frozenset(x.items())) for x in (now, self.keys))
        return now != self.keys and apart == before


class Guards:
    """Checks whether a module is in the expected state. It keeps submodules alive, but not the module itself."""

    def __init__(self, model: nn.Module, expected: Expected):
        self.expected = expected
        self._now: ModuleState | None = None
        self.modules: tuple[int, ...] = ()
        self.hold(model)

    def let_go(self) -> None:
        """Keep nothing alive until the next check."""
        self._now, self.modules = None, ()

    def unchanged(self, model: nn.Module) -> bool:
        """Whether a quick check finds the same objects as the last check that found no difference."""
        return self._now is not None and self._now.unchanged(model)

    def hold(self, model: nn.Module) -> bool:
        """Whether nothing differs. The second check of an unchanged module is quick."""
        if self.unchanged(model):
            return True
        now = ModuleState(model, self.expected.reads, self.expected.ignored)
        if now.keys != self.expected.keys:
            return False
        self._now = now
        self.modules = tuple(map(id, model.modules()))
        return True


class Reads:
    """The attributes that forward has read. names : id of a module -> names of its attributes; "*" stands for all.
    late : those that code in backward has read."""

    def __init__(self) -> None:
        self.names: dict[int, set[str]] = {}
        self.late: dict[int, set[str]] = {}

    def by_path(self, model: nn.Module, late: bool = False) -> dict[str, set[str]]:
        """The names by qualified name of the module. late : those that code in backward has read."""
        names = self.late if late else self.names
        return {path: names[id(m)] for path, m in model.named_modules() if id(m) in names}

    def recorded(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """`forward` with its reads recorded in every call."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._recording(self.names, lambda frame: frame.f_code.co_filename not in _HERE):
                return forward(*args, **kwargs)

        return call

    def in_backward(self) -> AbstractContextManager[None]:
        """Inside, reads by the user's code outside of forward are recorded: in hooks, and in autograd functions."""
        return self._recording(self.late, is_users, is_users)

    @contextmanager
    def _recording(
        self,
        names: dict[int, set[str]],
        takes_all: Callable[[FrameType], bool],
        takes: Callable[[FrameType], bool] | None = None,
    ) -> Iterator[None]:
        """Inside, reads of attributes are recorded in `names`.

        takes : whether a frame's reads of attributes count; None: all do. takes_all : whether its reads of `__dict__` count.
        """
        own: Any = nn.Module.__dict__.get("__getattribute__")
        look_up: Any = own or object.__getattribute__
        here = threading.get_ident()

        def read(module: Any, name: str) -> Any:
            if name not in INTERNAL and threading.get_ident() == here:
                if name != "__dict__":
                    if takes is None or takes(sys._getframe(1)):
                        names.setdefault(id(module), set()).add(name)
                elif takes_all(sys._getframe(1)):
                    names.setdefault(id(module), set()).add("*")
            return look_up(module, name)

        nn.Module.__getattribute__ = read  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            if own is None:
                del nn.Module.__getattribute__
            else:
                nn.Module.__getattribute__ = own  # type: ignore[method-assign]
