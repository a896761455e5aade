"""Key-value caches of transformers, which steps with planned parts do not make.

A cache is an object that every layer fills for later calls, so a layer that is given one does more than compute, and cannot be
a part. No gradient comes from a cache, and a model makes it in training only because `config.use_cache` is True by default.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn


def caching(model: nn.Module) -> list[Any]:
    """The configurations by which the model, or a submodule, makes a cache at each call."""
    found = {id(c): c for m in model.modules() if (c := m.__dict__.get("config")) is not None}
    return [c for c in found.values() if getattr(c, "use_cache", None) is True]


@contextlib.contextmanager
def without_caches(model: nn.Module) -> Iterator[bool]:
    """Inside, the model makes a cache only where the caller asks for one. Gives whether it would have made one."""
    configs = caching(model)
    try:
        for c in configs:
            c.use_cache = False
        yield bool(configs)
    finally:
        for c in configs:
            c.use_cache = True
