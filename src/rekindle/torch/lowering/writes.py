"""Tensors that forward writes in place, and which of these writes the planned step makes as eager does.

A captured graph is functional: a slice that forward writes into a buffer is new content of the whole buffer, which a `copy_`
brings back at the end. Here the contents of such a tensor, from what the caller holds to the last one, lie in its own memory:
each write is an op in place, with eager's own operator, and takes no memory. This is so where each content has been read before
the next write; eager's backward reads the last content alone, and raises an error for an earlier one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..capture.captured import Captured
from ..operators import rules
from ..operators.node_tensors import is_view, storage_bytes, tensors_of, with_values
from ..operators.overwrites import in_place_call
from ..operators.table import OVERWRITES, may_overwrite

aten = torch.ops.aten
# Op that puts a part back into a tensor -> the view that is the part.
_PART = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
}

Chain = tuple[dict[fx.Node, Callable[..., Any]], set[fx.Node]]
_MADE_ELSEWHERE: Chain = ({}, set())


@dataclass
class Writes:
    """The writes in place of a captured step.

    home : node -> the placeholder in whose memory its tensors lie: contents and their views, and the placeholder itself.
    over : op that writes over its first argument -> the call that does.
    back : ops that put a part back which lies in its place already.
    copied : last forward node that must run before a new content is copied over a placeholder -> those placeholders.
    """

    home: dict[fx.Node, fx.Node] = field(default_factory=dict)
    over: dict[fx.Node, Callable[..., Any]] = field(default_factory=dict)
    back: set[fx.Node] = field(default_factory=set)
    copied: dict[fx.Node, list[fx.Node]] = field(default_factory=dict)


def writes_in_place(c: Captured, forward: Sequence[fx.Node], backward: Sequence[fx.Node]) -> Writes:
    """The writes that the step makes in place; tensors that it mutates and that have no `home` get a copy in the end."""
    found, place = Writes(), {n: i for i, n in enumerate(forward)}
    at = Counter(t.untyped_storage()._cdata for p in c.placeholders for _, t in tensors_of(p))
    held = {*c.outputs, *c.gradients.values()}
    for p, new in c.mutations.items():
        t = p.meta["val"]
        alone = at[t.untyped_storage()._cdata] == 1 and storage_bytes(t) == t.numel() * t.element_size()
        if new is p or new not in place or not alone:
            continue
        others = held.union(n for q, n in c.mutations.items() if q is not p)
        for over, back in (_chain(p, new), _MADE_ELSEWHERE):
            home, last = _read_in_time(p, new, over, back, [*forward, *backward], place)
            if home and others.isdisjoint(home) and (over or new not in home):
                found.home |= dict.fromkeys(home, p)
                found.over |= over
                found.back |= back
                if not over:
                    found.copied.setdefault(last, []).append(p)
                break
    return found


def _chain(p: fx.Node, new: fx.Node) -> Chain:
    """(the ops that write over memory of p one after the other, the last one first; the ops that put parts back), from p to
    `new`."""
    over: dict[fx.Node, Callable[..., Any]] = {}
    back: set[fx.Node] = set()
    n: Any = new
    while n is not p:
        if not isinstance(n, fx.Node) or n.op != "call_function":
            return _MADE_ELSEWHERE
        if is_view(n):
            n = n.args[0]
        elif _lies_in_place(n):
            back.add(n)
            n = n.args[1]
        elif call := _call_over(n):
            over[n] = call
            n = n.args[0]
        else:
            return _MADE_ELSEWHERE
    before, after = p.meta["val"], new.meta["val"]
    return (over, back) if (before.shape, before.stride()) == (after.shape, after.stride()) else _MADE_ELSEWHERE


def _call_over(n: fx.Node) -> Callable[..., Any] | None:
    """The call that writes the op's result over its first argument, if there is one with the same bits."""
    a, made = n.args[0] if n.args else None, n.meta["val"]
    if not isinstance(a, fx.Node) or not isinstance(made, torch.Tensor) or rules.draws_random(n.target):
        return None
    t = a.meta["val"]
    if not isinstance(t, torch.Tensor) or (t.shape, t.dtype, t.device) != (made.shape, made.dtype, made.device):
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
    if not isinstance(over, fx.Node) or over.target is not view:
        return False
    return (over.args[0], over.args[1:], over.kwargs) == (n.args[0], n.args[2:], n.kwargs)


def _read_in_time(
    p: fx.Node, new: fx.Node, over: dict[fx.Node, Any], back: set[fx.Node], nodes: Sequence[fx.Node],
    place: dict[fx.Node, int],
) -> tuple[set[fx.Node], fx.Node]:  # fmt: skip
    """(the nodes whose tensors lie in the memory of p; none where an op reads a content after the next write, the last forward
    node that reads it or makes `new`). place : of the forward nodes, in order."""
    order = [*reversed(over)]
    content = {p: 0}  # node -> number of writes to the tensor that it is, or is a view of
    last = new if not over else order[-1]
    for n in nodes:
        first: Any = n.args[0] if n.args else None
        if n in over:
            content[n] = order.index(n) + 1
        elif n in back:
            content[n] = content[n.args[1]]  # type: ignore[index]
        elif first in content and is_view(n):
            content[n] = content[first]
            continue
        for a in n.all_input_nodes if n not in back else ():
            if a not in content:
                continue
            if n not in place and content[a] < max(1, len(order)):
                return set(), last
            if n in place and content[a] < len(order) and place[n] > place[order[content[a]]]:
                return set(), last
            last = max(last, n, key=lambda x: place.get(x, -1))
    return {*content}, last
