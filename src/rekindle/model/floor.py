"""The simplest lower bound on a peak: the working set of the largest op."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np

from .graph import Graph

P = ParamSpec("P")
R = TypeVar("R")


class Bound(NamedTuple):
    """bytes: a peak (resident included) below which no schedule exists; op: id of the op that sets it, or None."""

    bytes: int
    op: int | None


def remembered(make: Callable[Concatenate[Graph, P], R]) -> Callable[Concatenate[Graph, P], R]:
    """Decorator: what `make` gives for a graph and arguments is kept on the graph, which does not change. Every
    plan of a graph asks the same again."""

    @wraps(make)
    def found(graph: Graph, *args: P.args, **kwargs: P.kwargs) -> R:
        known = graph.__dict__.setdefault("_bounds", {})
        key = (make.__qualname__, *args, *kwargs.items())
        if key not in known:
            known[key] = make(graph, *args, **kwargs)
        return known[key]  # type: ignore[no-any-return]

    return found


@remembered
def single_op(graph: Graph) -> Bound:
    """The working set of the largest op, or everything that must be live at the end. O(edges).

    While an op that must run does run, all its inputs and outputs are live, and its workspace. An output that
    may be written over an input costs nothing.
    """
    a = graph.arrays
    best = Bound(graph.with_resident(int(a.bytes[a.keep].sum())), None)
    for i in np.flatnonzero(graph.needed):
        held = graph.with_resident(working_set(graph, int(i)))
        if held > best.bytes:
            best = Bound(held, int(i))
    return best


@remembered
def working_set(graph: Graph, i: int) -> int:
    """Bytes without which op i cannot run, resident ones left out."""
    a, op = graph.arrays, graph.ops[i]
    held = sum(int(a.bytes[v]) for v in {*op.inputs, *op.outputs}) + op.workspace
    if any(a.producer[v] >= 0 and a.bytes[v] >= a.bytes[op.outputs[0]] for v in op.inplace):
        held -= int(a.bytes[op.outputs[0]])
    return held
