"""Merges ops that compute the same from the same tensors (common subexpression elimination), in forward only.

Examples are a search cell that reads one input through two edges, and masks and position codes that every layer makes again.
Eager saves the result of each. Ops of backward depend on gradients and are left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch import fx

from ..operators import rules
from ..operators.node_tensors import is_member, tensors_of
from ..private import OpOverload, disable_autocast, pytree
from .captured import Captured, joint_fake_mode


def merge_duplicates(c: Captured, distinct: Callable[[fx.Node], bool]) -> None:
    """Replace equal ops by the first of them, whose meta["merged"] says how many they were.

    distinct : whether an op must not be merged.
    """
    apart = _storages_of_results(c)
    after: set[fx.Node] = set(c.tangents)
    first: dict[Any, fx.Node] = {}
    gone: set[int] = set()  # storages of merged results
    kept = []
    mode = joint_fake_mode(c.graph_module) or contextlib.nullcontext()
    for n in c.nodes:
        backward = n.meta.get("partitioner_tag") == "is_backward" or any(a in after for a in n.all_input_nodes)
        if backward:
            after.add(n)
        key = None if backward or not _may_merge(n) or distinct(n) else _key(n)
        if key is not None and apart & _storages(n):
            key = None
        if key in first:
            gone |= _storages(n) - _storages(first[key])
            first[key].meta["merged"] = first[key].meta.get("merged", 1) + 1
            n.replace_all_uses_with(first[key])
            n.graph.erase_node(n)
            continue
        kept.append(n)
        if gone & _storages(n):
            with disable_autocast(), mode:
                _look_again(n)
        if key is not None:
            first[key] = n
    c.nodes[:] = kept


def _storages_of_results(c: Captured) -> set[int]:
    """Storages of results and gradients: two tensors that the caller gets must stay two."""
    results = [*c.outputs, *c.mutations.values(), *c.gradients.values()]
    return {s for o in results if isinstance(o, fx.Node) for s in _storages(o)}


def _storages(n: fx.Node) -> set[int]:
    return {t.untyped_storage()._cdata for _, t in tensors_of(n)}


def _look_again(n: fx.Node) -> None:
    """Recompute the fake tensor of a node whose base was merged into another."""
    args, kwargs = fx.node.map_arg((n.args, n.kwargs), lambda a: a.meta["val"])
    n.meta["val"] = n.target(*args, **kwargs)  # type: ignore[operator]


def _may_merge(n: fx.Node) -> bool:
    """Whether the node surely computes the same tensors each time, and does nothing else."""
    if is_member(n):
        return True
    op = n.target
    return (
        isinstance(op, OpOverload) and op.namespace in rules.KNOWN and bool(tensors_of(n))
        and not op._schema.is_mutable and not rules.draws_random(op)
    )  # fmt: skip


def _key(n: fx.Node) -> Any:
    """A key that equal ops with equal arguments share; None if an argument cannot be compared."""
    leaves, spec = pytree.tree_flatten((n.args, n.kwargs))
    key = (n.target, tuple((type(x), repr(x) if isinstance(x, float) else x) for x in leaves), str(spec))
    try:
        hash(key)
    except TypeError:
        return None
    return key
