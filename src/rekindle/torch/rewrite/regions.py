"""Regions of ops that can run in slices: grown from one op, along the tensors that are large."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from ..operators import rules
from ..operators.cuts import SUM, Cut, cuts_of, tensor_arguments
from ..operators.node_tensors import is_member, storage_bytes, tensors_of
from .region import is_slice, source
from .shape_only import is_stand_in

Cuts = dict[fx.Node, Cut]
May = Callable[[fx.Node, Cut], bool]
Ways = Callable[[fx.Node], list[Cut]]


def grown(seed: fx.Node, cut: Cut, large_bytes: int, may: May, ways: Ways = cuts_of) -> Cuts:
    """The region around an op that is cut in this way: it goes on along every tensor of at least `large_bytes` bytes, as long
    as the op at the tensor's other end can be cut along the same dimension.

    may : whether an op may be cut in a way. ways : `cuts_of`, remembered where many regions are grown.
    """
    cuts = {seed: cut}
    todo = [seed]
    while todo:
        n = todo.pop()
        for m, c in _neighbours(n, cuts[n], large_bytes, may, ways):
            if m not in cuts:
                cuts[m] = c
                todo.append(m)
    return cuts


def _neighbours(n: fx.Node, cut: Cut, large_bytes: int, may: May, ways: Ways) -> list[tuple[fx.Node, Cut]]:
    """Ops before and after an op that can take slices from it or give slices to it."""
    found = []
    for a, dim in zip(tensor_arguments(n), cut.ins, strict=True):
        if isinstance(dim, int) and not is_stand_in(a) and storage_bytes(a.meta["val"]) >= large_bytes:
            p, j = source(a)
            if p.op == "call_function":
                found += [(p, c) for c in _admitted(p, may, ways) if c.outs[j] == dim][:1]
    for j, t in tensors_of(n):
        out = cut.outs[j]
        if isinstance(out, int) and storage_bytes(t) >= large_bytes:
            for a in _as_tensors(n, j):
                for u in a.users:
                    if u.op == "call_function" and not is_member(u) and not is_stand_in(u):
                        found += [(u, c) for c in _admitted(u, may, ways) if _reads(u, c, a) == {out}][:1]
    return found


def _admitted(n: fx.Node, may: May, ways: Ways) -> list[Cut]:
    if rules.draws_random(n.target) or rules.selects(n.target) or is_slice(n):
        return []
    return [c for c in ways(n) if may(n, c)]


def _reads(n: fx.Node, cut: Cut, a: fx.Node) -> set[int | None]:
    """The dimensions along which an op that is cut reads tensor `a`."""
    return {dim for x, dim in zip(tensor_arguments(n), cut.ins, strict=True) if x is a}


def _as_tensors(n: fx.Node, j: int) -> list[fx.Node]:
    """The nodes that stand for member j of an op's result."""
    members = [u for u in n.users if is_member(u)]
    return [u for u in members if u.args[1] == j] if members else [n]


def adds_up(cut: Cut) -> bool:
    """Whether slices give parts of a result that are added up, which rounds in another order."""
    return SUM in cut.outs
