"""Functions that keep their results, with `functools.lru_cache`: those that kept tensors of a capture are emptied."""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ..private import FunctionalTensor, is_fake
from ..tensors.objects import function_in, is_installed
from .callables import closure_of

_CACHE = type(functools.lru_cache(int))
_NESTED = (tuple, list, dict)  # kinds of results in which tensors may stand
_OWN = ("torch", "rekindle")  # packages whose caches are their own affair
_of_installed: dict[str, list[Any]] = {}  # name of an installed file -> its caches: such files do not change


def emptied(model: nn.Module, everywhere: bool = False) -> bool:
    """Empty the caches that kept tensors without data, which a capture of the model left there; whether there were any.

    A plain step would fail on such tensors. A function that kept one keeps a real tensor after the first plain step, and
    later steps do not compute it again: their graph is another one.

    The user's own files, and the classes of the model's modules, are looked through at each call: a cell of a notebook may
    have defined a function since. Of installed packages, those are looked through that modules of the model are from.

    everywhere : look through all packages.
    """
    kinds = {kind for m in model.modules() for kind in type(m).__mro__ if _package(kind.__module__) not in _OWN}
    packages = {_package(kind.__module__) for kind in kinds}
    held = [x for m in model.modules() for x in list(vars(m).values())]
    found = [c for x in [*kinds, *held] for c in _in_definition(x)]
    for name, file in list(sys.modules.items()):
        package = _package(name)
        if package in _OWN or package in sys.stdlib_module_names or not isinstance(file, types.ModuleType):
            continue
        if not is_installed(getattr(file, "__file__", None)):
            found += _in_file(file)
        elif everywhere or package in packages:
            if name not in _of_installed:
                _of_installed[name] = _in_file(file)
            found += _of_installed[name]
    filled = [c for c in found if holds_traced(gc.get_referents(c))]
    for c in filled:
        c.cache_clear()
    return bool(filled)


def _in_file(file: types.ModuleType) -> list[Any]:
    return [c for x in list(vars(file).values()) for c in _in_definition(x)]


def _package(module: str) -> str:
    return module.partition(".")[0]


def _in_definition(x: Any) -> Iterator[Any]:
    """Caches that a function is, or that it has in its closure; of a class, those of its methods."""
    for f in list(vars(x).values()) if isinstance(x, type) else [x]:
        f = function_in(f)
        if type(f) is _CACHE or type(f) is types.FunctionType and f.__closure__:  # few functions are
            yield from (c for c in closure_of(f) if type(c) is _CACHE)


def holds_traced(values: Iterable[Any], depth: int = 2) -> bool:
    """Whether a tensor without data stands among the values, or in a list, tuple or dict among them."""
    for x in values:
        if isinstance(x, torch.Tensor):
            if isinstance(x, FunctionalTensor) or is_fake(x):
                return True
        elif depth and type(x) in _NESTED and holds_traced(x.values() if isinstance(x, dict) else x, depth - 1):
            return True
    return False
