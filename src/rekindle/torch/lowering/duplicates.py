"""Merges ops that compute the same from the same tensors (common subexpression elimination), in forward only.

Examples are a search cell that reads one input through two edges, and masks and position codes that every layer makes again.
Eager saves the result of each. Ops of backward depend on gradients and are left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import fx

from ..capture.captured import Captured, fake_result, joint_fake_mode, memory_of
from ..operators import rules
from ..operators.node_tensors import is_member, tensors_of
from ..private import OpOverload, disable_autocast, pytree
from .phases import computed_from


def merge_duplicates(c: Captured, distinct: Callable[[fx.Node], bool]) -> Captured:
    """The step with the first of equal ops in place of all, whose meta["merged"] says how many they were. Its nodes are edited.

    distinct : whether an op must not be merged.
    """
    # Two tensors that the caller gets must stay two.
    results = [*c.outputs, *c.mutations.values(), *c.gradients.values()]
    apart = {s for o in results if isinstance(o, fx.Node) for s in memory_of(o)}
    tagged = [n for n in c.nodes if n.meta.get("partitioner_tag") == "is_backward"]
    backward = computed_from([*c.tangents, *tagged], c.nodes)
    first: dict[Any, fx.Node] = {}
    gone: set[int] = set()  # storages of merged results
    kept = []
    mode = joint_fake_mode(c.graph_module) or contextlib.nullcontext()
    for n in c.nodes:
        key = None if n in backward or not _may_merge(n) or distinct(n) else _key(n)
        if key is not None and apart & memory_of(n):
            key = None
        if key in first:
            gone |= memory_of(n) - memory_of(first[key])
            first[key].meta["merged"] = first[key].meta.get("merged", 1) + 1
            n.replace_all_uses_with(first[key])
            n.graph.erase_node(n)
            continue
        kept.append(n)
        if gone & memory_of(n):
            with disable_autocast(), mode:
                n.meta["val"] = fake_result(n)  # its base was merged into another
        if key is not None:
            first[key] = n
    return replace(c, nodes=kept)


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
