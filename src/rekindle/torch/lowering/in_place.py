"""Mutations of a module written in place, as eager does.

A captured graph is functional: new running statistics and counters are results, copied over the old ones at the end. For each
BatchNorm this takes three more launches, and two more for copies of the old values if the op is recomputed. If no other op
reads the old or the new values, the op's first run writes them in place, with the same bits, and later runs do without them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from ..capture.captured import Captured, Writing
from ..operators import hidden_writes
from ..operators.node_tensors import is_member, is_view, storage_bytes, tensors_of

aten = torch.ops.aten
_BATCH_NORM = aten._native_batch_norm_legit_functional.default
_IN_TRAINING = {_BATCH_NORM: 5, aten.native_batch_norm_backward.default: 7}  # position of the argument `training`
_STATISTICS = (
    hidden_writes.STATISTICS
)  # positions of the statistics here too, and of the new ones in the results of the first op


def write_in_place(c: Captured) -> Captured:
    """The step with mutations in `writing` in place of `mutations`, where that is safe. Its nodes are edited."""
    mutated = _Mutated(c)
    gone: set[fx.Node] = set()
    for n in c.nodes:
        if hidden_writes.writes(n.target, n.args):
            mutated.writing[n] = _hidden(n)
        elif n.target is _BATCH_NORM:
            gone |= _batch_norm(n, mutated)
        elif n.target is aten.copy.default:
            gone |= _copy(n, mutated)
    return replace(c, nodes=[n for n in c.nodes if n not in gone], mutations=mutated.new, writing=mutated.writing)


class _Mutated:
    """The readers of what forward mutates.

    new : the mutations that are left. writing : as in `Captured`.
    """

    def __init__(self, c: Captured) -> None:
        self.new, self.writing = dict(c.mutations), dict(c.writing)
        self.wanted = Counter([*c.outputs, *c.gradients.values(), *c.mutations.values()])
        self.at = Counter(t.untyped_storage()._cdata for p in c.placeholders for _, t in tensors_of(p))

    def only_between(self, p: Any, n: fx.Node, new: fx.Node | None) -> bool:
        """Whether only n reads placeholder p, and `new`, a result of n, is used only as the new value of p and by ops.

        p must be the whole of its own storage.
        """
        if new is None or self.new.get(p) is not new or set(p.users) != {n} or n.all_input_nodes.count(p) != 1:
            return False
        t = p.meta["val"]
        alone = self.at[t.untyped_storage()._cdata] == 1 and storage_bytes(t) == t.numel() * t.element_size()
        return alone and self.wanted[new] == 1 and not self.wanted[p]


def _hidden(n: fx.Node) -> Writing:
    """The first run of a kernel with hidden writes, which writes the statistics; later runs and backward do without."""
    first = Writing(n.target, n.args)
    statistics: list[Any] = [n.args[i] for i in _STATISTICS]
    for u in {u for p in statistics for u in p.users}:
        _without_statistics(u)
    return first


def _without_statistics(n: fx.Node) -> None:
    """Replace the op's running statistics by None."""
    n.args = tuple(None if i in _STATISTICS else a for i, a in enumerate(n.args))


def _batch_norm(n: fx.Node, mutated: _Mutated) -> set[fx.Node]:
    """Write a batch norm's statistics in place if that is safe; returns the nodes that this removes.

    The op returns (result, mean, rstd, new running mean, new running variance).
    """
    members: dict[Any, fx.Node] = {u.args[1]: u for u in n.users if is_member(u)}
    pairs: list[Any] = [(n.args[i], members.get(i)) for i in _STATISTICS]
    if not n.args[_IN_TRAINING[_BATCH_NORM]] or len(members) != len(n.users):
        return set()
    if not all(mutated.only_between(p, n, new) for p, new in pairs):
        return set()
    x, weight, bias, mean, *_ = n.args
    if weight is None and bias is None and x.meta["val"].dtype != mean.meta["val"].dtype:  # type: ignore[union-attr]
        return set()  # the dtype of the statistics decides how it rounds
    backward = {u for _, new in pairs for u in new.users if u.op != "output"}
    if not all(_ignores_statistics(u) for u in backward):
        return set()
    for u in backward:
        _without_statistics(u)
    for p, new in pairs:
        del mutated.new[p]
        new.replace_all_uses_with(p)
        n.graph.erase_node(new)
    # Eager's own operator: its writes leave the versions of the statistics as they are.
    mutated.writing[n] = Writing(aten.native_batch_norm.default, n.args)
    n.target, n.args = aten._native_batch_norm_legit.no_stats, (*n.args[: _STATISTICS[0]], *n.args[5:])
    n.meta["val"] = n.meta["val"][: _STATISTICS[0]]
    return {new for _, new in pairs}


def _copy(n: fx.Node, mutated: _Mutated) -> set[fx.Node]:
    """Let what forward copies as it is over a tensor that it mutates be the new content itself; returns the copy's node."""
    given: Any = n.args
    p, x = given[:2]
    if not isinstance(x, fx.Node) or x.op != "call_function" or is_view(x) or {*x.users} != {n}:
        return set()
    one, two = ((t.shape, t.stride(), t.dtype, t.device) for t in (n.meta["val"], x.meta["val"]))
    if one != two or mutated.new.get(p) is not n or mutated.wanted[n] != 1 or {u.op for u in n.users} != {"output"}:
        return set()
    mutated.new[p] = x
    n.replace_all_uses_with(x)
    n.graph.erase_node(n)
    return {n}


def _ignores_statistics(n: fx.Node) -> bool:
    """Whether the op is a batch norm's backward in training mode, which takes running statistics and ignores them."""
    return n.target is aten.native_batch_norm_backward.default and bool(n.args[_IN_TRAINING[n.target]])
