"""Key-value caches of transformers, which steps with planned parts do not make.

A cache is an object that every layer fills for later calls, so a layer that is given one does more than compute, and cannot be
a part. No gradient comes from a cache, and a model makes it in training only because `config.use_cache` is True by default.

In some models a step without caches has other bits: a cache lays keys and values out anew, and attention then rounds in another
way. Such a step keeps its caches, and the parts that are given one run plain.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ...errors import RekindleError
from ..trace import plain_forward
from .comparison import compare
from .measured_step import Calls, Subject, run


def caching(model: nn.Module) -> list[Any]:
    """The configurations by which the model, or a submodule, makes a cache at each call."""
    found = {id(c): c for m in model.modules() if (c := m.__dict__.get("config")) is not None}
    return [c for c in found.values() if getattr(c, "use_cache", None) is True]


def matter(s: Subject) -> bool:
    """Whether a plain step without caches gives other numbers than one with them."""
    if s.fake is not None or not caching(s.model):
        return False
    forward = plain_forward(s.model)
    try:
        theirs = run(s, forward, "plain", Calls.HELD)
        with without_caches(s.model):
            ours = run(s, forward, "plain", Calls.HELD)
    except (torch.OutOfMemoryError, RekindleError):  # later steps say why
        return False
    return bool(compare(ours, theirs, fake=False).differences)


@contextlib.contextmanager
def without_caches(model: nn.Module, keep: bool = False) -> Iterator[bool]:
    """Inside, the model makes a cache only where the caller asks for one. Gives whether it would have made one.

    keep : change nothing.
    """
    configs = [] if keep else caching(model)
    try:
        for c in configs:
            c.use_cache = False
        yield bool(configs)
    finally:
        for c in configs:
            c.use_cache = True
