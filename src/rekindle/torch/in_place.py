"""What a module mutates in forward, written where it lies, as eager does.

A captured graph is functional: new running statistics and counters are results, to be copied over the old ones at the
end. That takes three launches more for each BatchNorm, and two for copies of the old ones wherever it runs again. Where
nobody else reads the old or the new ones, the op's first run writes them instead, with the same bits, and later runs do
without them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from . import rules
from .capture import Captured, Writing
from .normalise import is_member, storage_bytes, tensors_of

aten = torch.ops.aten
_BATCH_NORM = aten._native_batch_norm_legit_functional.default
_IN_TRAINING = {_BATCH_NORM: 5, aten.native_batch_norm_backward.default: 7}  # position of that argument
_STATISTICS = (3, 4)  # positions of both, among what they take and what the first returns


def write_in_place(c: Captured) -> None:
    """Move mutations from `c.mutations` to `c.writing` where that is safe."""
    for n in list(c.nodes):
        if n.target is _BATCH_NORM:
            _batch_norm(c, n)
        elif 0 in rules.OVERWRITES.get(n.target, {}):
            _element_wise(c, n)


def _batch_norm(c: Captured, n: fx.Node) -> None:
    """It returns (result, mean, rstd, new running mean, new running variance)."""
    members: dict[Any, fx.Node] = {u.args[1]: u for u in n.users if is_member(u)}
    old: list[Any] = [n.args[i] for i in _STATISTICS]
    new = [members.get(i) for i in _STATISTICS]
    if n.kwargs or not n.args[_IN_TRAINING[_BATCH_NORM]] or len(members) != len(n.users):
        return
    backward = set()
    for p, m in zip(old, new, strict=True):
        if m is None or not _only_between(c, p, n, m):
            return
        backward |= {u for u in m.users if u.op != "output"}
    if not all(_ignores_statistics(u) for u in backward):
        return
    for u in backward:
        u.args = tuple(None if i in _STATISTICS else a for i, a in enumerate(u.args))
    for p, m in zip(old, new, strict=True):
        assert m is not None
        del c.mutations[p]
        c.nodes.remove(m)
        m.replace_all_uses_with(p)
        m.graph.erase_node(m)
    c.writing[n] = Writing(aten._native_batch_norm_legit.default, n.args)
    n.target, n.args = aten._native_batch_norm_legit.no_stats, (*n.args[: _STATISTICS[0]], *n.args[5:])
    n.meta["val"] = n.meta["val"][: _STATISTICS[0]]


def _ignores_statistics(n: fx.Node) -> bool:
    """Whether the op takes running statistics and computes nothing from them, since it trains."""
    return n.target is aten.native_batch_norm_backward.default and bool(n.args[_IN_TRAINING[n.target]])


def _element_wise(c: Captured, n: fx.Node) -> None:
    p: Any = n.args[0]
    if not isinstance(p, fx.Node) or not _only_between(c, p, n, n) or any(u.op != "output" for u in n.users):
        return
    before, after = p.meta["val"], n.meta["val"]
    if (before.shape, before.dtype, before.device) != (after.shape, after.dtype, after.device):
        return
    del c.mutations[p]
    c.writing[n] = Writing(rules.OVERWRITES[n.target][0], n.args)


def _only_between(c: Captured, p: Any, n: fx.Node, new: fx.Node) -> bool:
    """Whether n alone reads placeholder p, whose storage is its own, and `new`, which n makes, goes nowhere else but
    into p and perhaps to ops."""
    if c.mutations.get(p) is not new or set(p.users) != {n} or n.all_input_nodes.count(p) != 1:
        return False
    taken = [*c.outputs, *c.gradients.values(), *(m for q, m in c.mutations.items() if q is not p)]
    return new not in taken and p not in taken and _alone(c, p)


def _alone(c: Captured, p: fx.Node) -> bool:
    """Whether p is all of its storage, and no other placeholder lies there."""
    t = p.meta["val"]
    storage = t.untyped_storage()._cdata
    others = (x for q in c.placeholders if q is not p for _, x in tensors_of(q))
    whole = storage_bytes(t) == t.numel() * t.element_size()
    return whole and all(x.untyped_storage()._cdata != storage for x in others)
