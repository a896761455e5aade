"""The fields of objects, and which objects may hold values that forward computes with."""

from __future__ import annotations

import enum
import sys
import types
from typing import Any

import torch

_ELSEWHERE = sys.stdlib_module_names - {"__main__", "argparse", "types"} | {"numpy", "torch"}


def is_elsewhere(x: Any) -> bool:
    """Whether a module, class or object comes from Python itself, torch or NumPy, where users set no values."""
    name = x.__name__ if isinstance(x, types.ModuleType) else (x if isinstance(x, type) else type(x)).__module__
    return str(name).partition(".")[0] in _ELSEWHERE


def is_users(x: Any) -> bool:
    """Whether the user wrote x, a class or a Python module. Python, torch, NumPy and installed packages are not the user's."""
    if not isinstance(x, type | types.ModuleType) or is_elsewhere(x) or isinstance(x, enum.EnumMeta):
        return False
    name = x.__name__ if isinstance(x, types.ModuleType) else x.__module__
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name.partition(".")[0] != "rekindle" and "-packages" not in file


def is_simple(x: Any) -> bool:
    """Whether x is a value that forward may compute with: no function, class, module or other object."""
    return issubclass(type(x), _SIMPLE)  # by its type alone: a weak proxy would be asked for its object


_SIMPLE = (bool, int, float, complex, str, type(None), torch.dtype, tuple, list, dict, set)


def fields_of(x: Any) -> dict[str, Any]:
    """The fields of an object, in its `__dict__` and its slots, by name."""
    held = getattr(x, "__dict__", None)
    found = dict(held) if isinstance(held, dict) else {}
    return found | {s: getattr(x, s) for s in slots_of(type(x)) if hasattr(x, s)}


def slots_of(kind: type) -> tuple[str, ...]:
    """The names in `__slots__` of a class and its bases."""
    return tuple([s for k in kind.__mro__ if "__slots__" in k.__dict__ for s in _slots(k)])


def _slots(kind: type) -> list[str]:
    slots = kind.__dict__["__slots__"]
    names = [slots] if isinstance(slots, str) else [*slots]
    private = f"_{kind.__name__.lstrip('_')}"  # Python prefixes names that begin with two underscores
    return [private + s if s[:2] == "__" else s for s in names if s not in ("__dict__", "__weakref__")]
