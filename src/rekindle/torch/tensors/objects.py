"""Python objects taken apart: whose they are, the function in them, the variables of functions, their fields and entries.

All code that walks over Python objects reads and refills them with these functions, so that a new kind of object is taught
here. They use Python's own methods, past overrides of subclasses, which may compute their answers: a registry, say, that builds
an object whenever it is asked for a class. Reading it must not build one, and refilling it must not leave objects where classes
were.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import operator
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

OBJECTS_MOST = 20_000  # objects that one walk looks into; a guess
PLAIN = (bool, int, float, complex, str, bytes, range, slice, frozenset, enum.Enum, type(None), torch.dtype, torch.device,
         torch.Size, torch.layout)  # fmt: skip
_CLOSED = (*PLAIN, type, torch.Tensor, torch.nn.Module, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
_SIMPLE = (bool, int, float, complex, str, type(None), torch.dtype, tuple, list, dict, set)
_AROUND_FUNCTIONS = (types.MethodType, staticmethod, classmethod, property, functools.cached_property)
_INHERITED = object()
_ELSEWHERE = sys.stdlib_module_names - {"__main__", "argparse", "types"} | {"numpy", "torch"}


class InPlace:
    """Stands in place of a module's own forward while a plan is on the module. It is no state of the model."""

    _own: Any = None  # the forward that the module itself had in its `__dict__`; None: its class's


def without_plan(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a module as they are without a plan."""
    own = here = fields.get("forward")
    while isinstance(own, InPlace):
        own = own._own
    if own is here:
        return fields
    return {k: x for k, x in (fields | {"forward": own}).items() if k != "forward" or own is not None}


def is_elsewhere(x: Any) -> bool:
    """Whether a module, class or object comes from Python itself, torch or NumPy, where users set no values."""
    name = x.__name__ if isinstance(x, types.ModuleType) else (x if isinstance(x, type) else type(x)).__module__
    return str(name).partition(".")[0] in _ELSEWHERE


def is_users(x: Any) -> bool:
    """Whether the user wrote x, a class or a Python module. Python, torch, NumPy and installed packages are not the user's."""
    if not isinstance(x, type | types.ModuleType) or is_elsewhere(x) or isinstance(x, enum.EnumMeta):
        return False
    name = x.__name__ if isinstance(x, types.ModuleType) else x.__module__
    return name.partition(".")[0] != "rekindle" and not is_installed(getattr(sys.modules.get(name), "__file__", None))


def is_installed(file: str | None) -> bool:
    """Whether a file belongs to an installed package; False for None, as where code was typed at a prompt."""
    return "-packages" in (file or "")


def is_simple(x: Any) -> bool:
    """Whether x is a value that forward may compute with: no function, class, module or other object."""
    return issubclass(type(x), _SIMPLE)  # by its type alone: a weak proxy would be asked for its object


def function_in(x: Any) -> Any:
    """The function in a bound, static or class method, a property, a cached property, or a descriptor of the user's that keeps
    it as they do; any other object as it is."""
    while issubclass(type(x), _AROUND_FUNCTIONS):  # by its type alone: a weak proxy would be asked for its object
        x = x.fget if isinstance(x, property) else x.func if isinstance(x, functools.cached_property) else x.__func__
    if not isinstance(getattr(type(x), "__get__", None), types.FunctionType):
        return x
    held = getattr(x, "__dict__", None)
    inner = [held[k] for k in ("__func__", "fget") if k in held] if isinstance(held, dict) else []
    return next((f for f in inner if isinstance(f, types.FunctionType)), x)


def reached(start: Iterable[Any], inside: Callable[[Any], Iterable[Any]], most: int = OBJECTS_MOST) -> Iterator[Any]:
    """These objects and all that `inside` finds in them, in what it found there, and so on, each once; at most so many."""
    found: dict[int, Any] = {}  # it keeps the objects alive, so that no id is used again
    pending = [*start]
    while pending and len(found) < most:
        x = pending.pop()
        if id(x) not in found:
            found[id(x)] = x
            yield x
            pending += inside(x)


def changeable(start: Iterable[Any]) -> set[int]:
    """ids of the containers and objects that are reached from these and whose content may change; no tensors and modules."""
    return {id(x) for x in reached_in(start) if not isinstance(x, (*_CLOSED, tuple))}


def reached_in(start: Iterable[Any]) -> Iterator[Any]:
    """These containers and objects and all that they hold; what tensors and modules hold is left out."""

    def inside(x: Any) -> Iterable[Any]:
        if isinstance(x, _CLOSED):
            return ()
        if isinstance(x, tuple | frozenset):
            return x
        return values_of(x) if isinstance(x, dict | list | set | deque) else fields_of(x).values()

    return reached(start, inside)


def cells_of(f: types.FunctionType) -> list[types.CellType]:
    """The variables of enclosing functions that a function uses, without those that have no value."""
    return [c for c in f.__closure__ or () if is_full(c)]


def is_full(cell: types.CellType) -> bool:
    """Whether the variable of an enclosing function has a value."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def fields_of(x: Any) -> dict[str, Any]:
    """The fields of an object, in its `__dict__` and its slots, by name."""
    held = getattr(x, "__dict__", None)
    found = dict(held) if isinstance(held, dict) else {}
    return found | {s: getattr(x, s) for s in slots_of(type(x)) if hasattr(x, s)}


def has_fields(x: Any) -> bool:
    """Whether an object has a `__dict__` or slots."""
    return isinstance(getattr(x, "__dict__", None), dict) or bool(slots_of(type(x)))


def slots_of(kind: type) -> tuple[str, ...]:
    """The names in `__slots__` of a class and its bases."""
    return tuple([s for k in kind.__mro__ if "__slots__" in k.__dict__ for s in _slots(k)])


def _slots(kind: type) -> list[str]:
    slots = kind.__dict__["__slots__"]
    names = [slots] if isinstance(slots, str) else [*slots]
    private = f"_{kind.__name__.lstrip('_')}"  # Python prefixes names that begin with two underscores
    return [private + s if s[:2] == "__" else s for s in names if s not in ("__dict__", "__weakref__")]


def entries(x: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """The stored (key, value) pairs of a dict, in its order."""
    if not isinstance(x, OrderedDict):
        return iter(dict.items(x))
    # An OrderedDict keeps its order apart from its dict's.
    return ((k, dict.__getitem__(x, k)) for k in OrderedDict.__iter__(x))


def content(x: Any) -> Any:
    """A plain copy of a list, deque, dict or set: a list, a dict or a set."""
    if isinstance(x, dict):
        return dict(entries(x))
    if isinstance(x, set):
        return set(set.__iter__(x))
    return list(deque.__iter__(x) if isinstance(x, deque) else list.__iter__(x))


def values_of(x: Any) -> list[Any]:
    """The values of a dict, or the items of a list, deque or set."""
    return [v for _, v in entries(x)] if isinstance(x, dict) else [*content(x)]


def refill(x: Any, held: Any) -> None:
    """Make a list, deque, dict or set hold what `content` returned."""
    kind: Any = next(k for k in (OrderedDict, dict, set, deque, list) if isinstance(x, k))
    kind.clear(x)
    if isinstance(x, dict):
        for k, v in held.items():
            kind.__setitem__(x, k, v)
    elif isinstance(x, set):
        set.update(x, held)
    else:
        kind.extend(x, held)


def put_back(x: Any, held: Any) -> None:
    """Make a list, deque, dict or set hold these very objects, unless it does."""
    if not same_content(content(x), held, operator.is_):
        refill(x, held)


@contextlib.contextmanager
def values_set(places: Iterable[tuple[Any, Any, Any]]) -> Iterator[None]:
    """Inside, these entries of tables and variables of classes have these values; a class may inherit the variable.
    places : (dict or class, name, value)."""
    now = [*places]
    before = [(t, k, vars(t).get(k, _INHERITED) if isinstance(t, type) else t[k]) for t, k, _ in now]

    def put(values: Iterable[tuple[Any, Any, Any]]) -> None:
        for held, k, x in values:
            if not isinstance(held, type):
                held[k] = x
            elif x is _INHERITED:
                delattr(held, k)
            else:
                setattr(held, k, x)

    try:
        put(now)
        yield
    finally:
        put(reversed(before))


def same_entry(x: Any, y: Any) -> bool:
    """Whether two entries are one object, or equal plain values."""
    return x is y or type(x) is type(y) and isinstance(x, PLAIN) and (x == y or x != x and y != y)


def same_content(x: Any, y: Any, same: Callable[[Any, Any], bool] = same_entry) -> bool:
    """Whether two contents, as `content` returns them, are equal. same : compares entries of lists and values of dicts."""
    if isinstance(x, dict) and isinstance(y, dict):
        pairs = zip(x.items(), y.items(), strict=True)
        return len(x) == len(y) and all((k is j or k == j) and same(a, b) for (k, a), (j, b) in pairs)
    if isinstance(x, list) and isinstance(y, list):
        return len(x) == len(y) and all(map(same, x, y))
    if isinstance(x, set) and isinstance(y, set):
        return len(x) == len(y) and {id(a) for a in x} == {id(b) for b in y} or x == y
    return same_entry(x, y)
