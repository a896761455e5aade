"""Tells which stages of a forward can share compiled code: their graphs, inputs and surroundings are equal."""

from __future__ import annotations

import hashlib
import itertools
import types
import uuid
import weakref
from typing import Any

import torch
from torch import fx

from ..situation.surroundings import surroundings
from ..tensors.op_tensors import content_bytes
from .compiler import is_operator

DIGITS = 16
_KNOWN = ("torch", "_operator", "operator", "builtins", "math")  # modules whose functions are the same ones everywhere
_ME, _numbers = uuid.uuid4().hex, itertools.count()
_tokens: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def kind_of(body: fx.GraphModule) -> str:
    """A digest of the graph, of its inputs and of the state that shapes what is compiled."""
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    text = repr((_lines(body), surroundings(), deterministic))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _lines(body: fx.GraphModule) -> list[Any]:
    at: dict[fx.Node, int] = {}
    storages: dict[Any, int] = {}
    lines: list[Any] = []
    for i, n in enumerate(body.graph.nodes):
        at[n] = i
        if n.op == "placeholder":
            lines.append(_input(n.meta.get("example_value"), storages))
        elif n.op == "get_attr":
            lines.append(_attribute(body, str(n.target)))
        else:
            lines.append((n.op, _target(n), repr(fx.node.map_arg((n.args, n.kwargs), lambda x: _At(at[x])))))
    return lines


def _input(t: Any, storages: dict[Any, int]) -> Any:
    if not isinstance(t, torch.Tensor) or t.layout is not torch.strided:
        return repr(t)
    shared = storages.setdefault(t.untyped_storage()._cdata, len(storages))
    like = type(t).__name__, tuple(t.shape), t.stride(), t.dtype, str(t.device), t.requires_grad
    return *like, shared, t.storage_offset()


def _target(node: fx.Node) -> str:
    """A name of the function that the node calls. One that is not torch's has another name in each process: equal names do not
    say equal code."""
    if isinstance(node.target, str) or is_operator(node.target):
        return str(node.target)
    module = str(getattr(node.target, "__module__", ""))
    name = str(getattr(node.target, "__qualname__", node.target))
    if name.endswith("<locals>.fn"):  # torch's functions that choose between two, such as max_pool2d
        name = str(getattr(node.target, "__name__", name))
    if isinstance(node.target, types.BuiltinFunctionType):  # of C
        return f"{module}.{name}"
    if module.partition(".")[0] in _KNOWN and "<locals>" not in name and "triton" not in name:
        return f"{module}.{name}"
    try:
        return _tokens.setdefault(node.target, f"{_ME} {next(_numbers)}")
    except TypeError:  # no weak references to it
        return f"{_ME} {id(node.target)} {next(_numbers)}"


def _attribute(body: fx.GraphModule, name: str) -> Any:
    found: Any = body
    for part in name.split("."):
        found = getattr(found, part)
    if isinstance(found, fx.GraphModule):
        return _lines(found)
    if isinstance(found, torch.Tensor):
        like = str(found.dtype), tuple(found.shape), found.stride(), str(found.device), found.requires_grad
        return *like, hashlib.sha256(content_bytes(found)).hexdigest()
    return repr(found)


class _At(int):
    """The number of a node, which no number in the arguments looks like."""

    def __repr__(self) -> str:
        return f"%{int(self)}"
