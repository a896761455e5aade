"""Tells which parts can share compiled code: they have the same classes, shapes and inputs, and forward reads equal attributes.

Dynamo compiles anew where an attribute that forward reads has another value (a rate of dropout, an activation function), and
not where one that it does not read has (the number of a layer).
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn

from ..measure.recording import signature
from ..situation.attribute_reads import Reads
from ..tensors import tree
from ..trace import plain_forward
from .finding import Unit
from .trial_steps import TrialSteps

DIGITS = 16


class Kinds:
    """Tells the kinds of parts. One plain forward of each class and shape says which attributes are read."""

    def __init__(self) -> None:
        self._read: dict[Any, dict[str, set[str]]] = {}

    def of(self, unit: Unit) -> str:
        """Equal for parts that can share what is compiled and measured. Raises what forward raises."""
        same = signature(unit.module), unit.key
        if same not in self._read:
            self._read[same] = _read_by(unit)
        settings = [
            (path, name, described(vars(m).get(name)))
            for path, m in unit.module.named_modules()
            for name in sorted(self._read[same].get(path, ()))
        ]
        return hashlib.sha256(repr((same, settings)).encode()).hexdigest()[:DIGITS]


def _read_by(unit: Unit) -> dict[str, set[str]]:
    reads = Reads()
    with TrialSteps(unit, torch.device("cpu")).ready() as trial:
        reads.recorded(plain_forward(unit.module))(*trial.args, **trial.kwargs)
    return reads.by_path(unit.module)


def described(x: Any) -> str:
    """A setting in words that are the same in every process; "" for what guards or shapes tell of."""
    if isinstance(x, torch.Tensor | nn.Module):
        return ""
    if isinstance(x, tree.PLAIN):
        return repr(x)
    if isinstance(x, list | tuple):
        return repr([described(y) for y in x])
    name = getattr(x, "__qualname__", None)
    if name is not None:
        return f"{getattr(x, '__module__', '')}.{name}"
    held = getattr(x, "__dict__", {})
    return f"{type(x).__qualname__} {sorted((k, repr(y)) for k, y in held.items() if isinstance(y, tree.PLAIN))}"
