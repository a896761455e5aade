"""Tensors that forward writes to, and the writes to them that a planned step makes in place, as eager does.

A captured graph is functional: a slice that forward writes into a buffer is new content of the whole buffer, which a `copy_`
brings back at the end. Here the contents of such a tensor, from what the caller holds to the last one, lie in its own memory:
each write is an op in place, with eager's own operator, and takes no memory. This is so where each content has been read before
the next write: eager's backward reads the last content alone, and raises an error for an earlier one. Else the last content is
made elsewhere, and copied over the tensor.

New running statistics are results of a BatchNorm. Copied over the old ones, they take three more launches for each layer, and
two more for copies of the old values if the op is recomputed. If no other op reads the old or the new values, the op's first
run writes them in place, with the same bits, and later runs do without them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from ..capture.captured import Captured, Writing
from ..operators import hidden_writes, rules
from ..operators.corrected import in_place_call
from ..operators.node_tensors import is_member, is_view, storage_bytes, tensors_of, with_values
from ..operators.table import OVERWRITES, may_overwrite

aten = torch.ops.aten
_BATCH_NORM = aten._native_batch_norm_legit_functional.default
_IN_TRAINING = {_BATCH_NORM: 5, aten.native_batch_norm_backward.default: 7}  # position of the argument `training`
_STATISTICS = hidden_writes.STATISTICS  # their positions here too, and of the new ones in the results of the first op
# Op that puts a part back into a tensor -> the view that is the part.
_PART: dict[Any, Any] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
}


def _lying_in(c: Captured) -> Counter[int]:
    """Storage -> how many tensors of the caller's lie in it."""
    return Counter(t.untyped_storage()._cdata for p in c.placeholders for _, t in tensors_of(p))


def _is_alone(p: fx.Node, at: Counter[int]) -> bool:
    """Whether a placeholder is the whole of a storage of its own. at : as `_lying_in`."""
    t = p.meta["val"]
    return at[t.untyped_storage()._cdata] == 1 and storage_bytes(t) == t.numel() * t.element_size()


@dataclass
class Writes:
    """The writes of a captured step to what the caller holds.

    home : node -> the placeholder in whose memory its tensors lie: contents and their views, and the placeholder itself.
    over : op that writes over its first argument -> the call that does.
    back : ops that put a part back which lies in its place already.
    copied : placeholder over which a content that is made elsewhere is copied -> the last forward node before that.
    """

    home: dict[fx.Node, fx.Node] = field(default_factory=dict)
    over: dict[fx.Node, Callable[..., Any]] = field(default_factory=dict)
    back: set[fx.Node] = field(default_factory=set)
    copied: dict[fx.Node, fx.Node | None] = field(default_factory=dict)


def writes_of(c: Captured, forward: Sequence[fx.Node], backward: Sequence[fx.Node]) -> Writes:
    """The writes of the step, in place where that is safe."""
    found, place, at = Writes(), {n: i for i, n in enumerate(forward)}, _lying_in(c)
    for p, new in c.mutations.items():
        if new is p:
            continue
        others = {*c.outputs, *c.gradients.values(), *(n for q, n in c.mutations.items() if q is not p)}
        over, back = _chain(p, new) if _is_alone(p, at) else ({}, set())
        home = _home(p, over, back, [*forward, *backward], place)
        if not over or home is None or not others.isdisjoint(home):
            over, back = {}, set()
            home = _home(p, over, back, [*forward, *backward], place) or {}
            readers = [n for n in forward if n is new or not home.keys().isdisjoint(n.all_input_nodes)]
            found.copied[p] = readers[-1] if new in place else None
        found.home |= dict.fromkeys(home, p)
        found.over |= over
        found.back |= back
    return found


def _chain(p: fx.Node, new: fx.Node) -> tuple[dict[fx.Node, Callable[..., Any]], set[fx.Node]]:
    """(the ops that write over memory of p one after the other, the last one first; the ops that put parts back), from p to
    `new`; without ops where `new` is made elsewhere."""
    over: dict[fx.Node, Callable[..., Any]] = {}
    back: set[fx.Node] = set()
    n: Any = new
    while n is not p:
        call = _call_over(n)
        if _lies_in_place(n):
            back.add(n)
        elif not is_view(n) and call is not None:
            over[n] = call
        elif n.op != "call_function" or not is_view(n):
            return {}, set()
        n = n.args[1] if n in back else n.args[0]
    before, after = p.meta["val"], new.meta["val"]
    return (over, back) if (before.shape, before.stride()) == (after.shape, after.stride()) else ({}, set())


def _call_over(n: fx.Node) -> Callable[..., Any] | None:
    """The call that writes the op's result over its first argument, if there is one with the same bits."""
    a, made = n.args[0] if n.args else None, n.meta["val"]
    t = a.meta["val"] if isinstance(a, fx.Node) else None
    if not isinstance(t, torch.Tensor) or not isinstance(made, torch.Tensor) or rules.draws_random(n.target):
        return None
    if (t.shape, t.dtype, t.device) != (made.shape, made.dtype, made.device):
        return None
    if 0 in OVERWRITES.get(n.target, {}):
        return OVERWRITES[n.target][0] if may_overwrite(n.target, 0, with_values(n.args)) else None
    return in_place_call(n.target)


def _lies_in_place(n: fx.Node) -> bool:
    """Whether the op puts back a part that an op wrote over the same part of its first argument."""
    view, part = _PART.get(n.target), n.args[1] if len(n.args) > 1 else None
    if view is None or not isinstance(part, fx.Node) or {*part.users} != {n}:
        return False
    over: Any = part.args[0] if _lies_in_place(part) or _call_over(part) else None
    same = isinstance(over, fx.Node) and over.target is view
    return same and (over.args[0], over.args[1:], over.kwargs) == (n.args[0], n.args[2:], n.kwargs)


def _home(
    p: fx.Node, over: dict[fx.Node, Any], back: set[fx.Node], nodes: Sequence[fx.Node], place: dict[fx.Node, int]
) -> dict[fx.Node, int] | None:
    """Node whose tensors lie in the memory of p -> number of writes to them; None: an op reads a content after the next write.
    place : of the forward nodes, in order."""
    order = [*reversed(over)]
    content = {p: 0}
    for n in nodes:
        first: Any = n.args[0] if n.args else None
        if n in over:
            content[n] = order.index(n) + 1
        elif n in back or first in content and is_view(n):
            content[n] = content[n.args[1] if n in back else first]  # type: ignore[index]
            continue
        for a in n.all_input_nodes:
            late = a in content and content[a] < len(order)
            if late and (n not in place or place[n] > place[order[content[a]]]):
                return None
    return content


# -- statistics of batch norms, and copies -----------------------------------------------------------------------------
def write_in_place(c: Captured) -> Captured:
    """The step with mutations in `writing` in place of `mutations`, where that is safe. Its nodes are edited."""
    mutated = _Mutated(c)
    gone: set[fx.Node] = set()
    for n in c.nodes:
        if hidden_writes.writes(n.target, n.args):
            mutated.writing[n] = Writing(n.target, n.args)  # of its first run alone
            statistics: list[Any] = [n.args[i] for i in _STATISTICS]
            for u in {u for p in statistics for u in p.users}:
                _without_statistics(u)
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
        self.at = _lying_in(c)

    def only_between(self, p: Any, n: fx.Node, new: fx.Node | None) -> bool:
        """Whether only n reads placeholder p, and `new`, a result of n, is used only as the new value of p and by ops.

        p must be the whole of its own storage.
        """
        if new is None or self.new.get(p) is not new or set(p.users) != {n} or n.all_input_nodes.count(p) != 1:
            return False
        return _is_alone(p, self.at) and self.wanted[new] == 1 and not self.wanted[p]


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
