"""Tensors that forward writes in place, and which of these writes the planned step makes as eager does.

A captured graph is functional: a slice that forward writes into a buffer is new content of the whole buffer, which a `copy_`
brings back at the end. Here the contents of such a tensor, from what the caller holds to the last one, lie in its own memory:
each write is an op in place, with eager's own operator, and takes no memory. This is so where each content has been read before
the next write: eager's backward reads the last content alone, and raises an error for an earlier one. Else the last content is
made elsewhere, and copied over the tensor.
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
from ..operators.corrected import in_place_call
from ..operators.node_tensors import is_view, storage_bytes, tensors_of, with_values
from ..operators.table import OVERWRITES, may_overwrite

aten = torch.ops.aten
# Op that puts a part back into a tensor -> the view that is the part.
_PART: dict[Any, Any] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
}


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
    found, place = Writes(), {n: i for i, n in enumerate(forward)}
    at = Counter(t.untyped_storage()._cdata for p in c.placeholders for _, t in tensors_of(p))
    for p, new in c.mutations.items():
        if new is p:
            continue
        t, others = (
            p.meta["val"],
            {*c.outputs, *c.gradients.values(), *(n for q, n in c.mutations.items() if q is not p)},
        )
        alone = at[t.untyped_storage()._cdata] == 1 and storage_bytes(t) == t.numel() * t.element_size()
        over, back = _chain(p, new) if alone else ({}, set())
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
