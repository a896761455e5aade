"""A region of ops that run in slices: how it grows from one op along the tensors that are large, how each op is cut, and which
tensors are put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from ..capture.captured import Captured
from ..lowering.editing import Editor
from ..lowering.gradient_additions import SLICE, additions, additions_of_results, casts
from ..lowering.phases import depend_on_gradients
from ..lowering.shape_only import is_stand_in
from ..operators import rules
from ..operators.node_tensors import is_member, is_view, storage_bytes, tensors_of
from .cuts import SUM, Cut, cuts_of, tensor_arguments

Cuts = dict[fx.Node, Cut]
May = Callable[[fx.Node, Cut], bool]
Ways = Callable[[fx.Node], list[Cut]]
Tensor = tuple[fx.Node, int]  # a node, and the member of its result


@dataclass(frozen=True)
class Region:
    """Ops that run in slices.

    cuts : how each op is cut. slices : how many there are.
    kept : ops that run whole too, for readers outside of the region: no tensor of theirs is put together.
    unproven : ops whose slices may give other bits than the whole op.
    """

    cuts: Mapping[fx.Node, Cut]
    slices: int
    kept: frozenset[fx.Node] = frozenset()
    unproven: frozenset[fx.Node] = frozenset()


def is_slice(n: fx.Node) -> bool:
    """Whether the op belongs to a region that runs in slices."""
    return SLICE in n.meta


def units(cuts: Mapping[fx.Node, Cut]) -> int:
    """The largest number of equal parts that all tensors of these ops can be cut into: a divisor of their sizes along the
    dimensions that are cut, and of the groups of convolutions."""
    found = 0
    for n, cut in cuts.items():
        found = math.gcd(found, cut.units)
        for a, dim in zip(tensor_arguments(n), cut.ins, strict=True):
            if isinstance(dim, int):
                found = math.gcd(found, int(a.meta["val"].shape[dim]))
        for j, out in enumerate(cut.outs):
            if isinstance(out, int):
                found = math.gcd(found, int(tensor((n, j)).shape[out]))
    return found


def handed_over_whole(c: Captured) -> set[fx.Node]:
    """The ops that add up the gradients of several uses of a parameter or input, of its cast by autocast, or of a result to
    which gradients may come from the loss. Their arguments may be handed over one by one, for autograd to add them up (see
    `run.results`), so they run whole."""
    of_results = [g for x, g in additions_of_results(c).items() if c.inner[x].output not in c.ignored_outputs]
    several = [cast for cast in casts(c).values() if cast.adds]
    of_casts = {n for x in several for n in (x.node, *x.adds)}
    return {n for nodes in [*additions(c).values(), *of_results] for n in nodes} | of_casts


def source(a: fx.Node) -> Tensor:
    """The op that makes a tensor, and which member of its result the tensor is."""
    return (a.args[0], a.args[1]) if is_member(a) else (a, 0)  # type: ignore[return-value]


def tensor_nodes(n: fx.Node) -> list[tuple[int, fx.Node]]:
    """(member, the node that stands for it) of every tensor that an op returns and something reads."""
    if isinstance(n.meta["val"], torch.Tensor):
        return [(0, n)]
    return [(u.args[1], u) for u in n.users if is_member(u) and isinstance(u.meta["val"], torch.Tensor)]  # type: ignore[misc]


def put_together(a: fx.Node, region: Region, c: Captured, views: bool = True) -> bool:
    """Whether a tensor that an op in slices makes is put together: an op that runs whole reads it, or it is a result.

    views : also where this holds for a view of it that is made slice by slice.
    """
    cuts = region.cuts
    if source(a)[0] in region.kept:
        return False
    if a in c.outputs or a in c.gradients.values() or a in c.mutations.values():
        return True
    for u in a.users:
        if u in cuts and u not in region.kept:
            if views and is_view(u) and put_together(u, region, c):
                return True
        elif not is_member(u) and not (is_stand_in(u) and all(r in cuts and r not in region.kept for r in u.users)):
            return True
    return False


def whole_views(cuts: Mapping[fx.Node, Cut], c: Captured) -> frozenset[fx.Node]:
    """The views in a region that ops outside of it read: they stay, as views of what is put together."""
    kept: frozenset[fx.Node] = frozenset()
    while True:
        region = Region(cuts, 1, kept)
        more = {n for n in cuts if is_view(n) and n not in kept and put_together(n, region, c, views=False)}
        if not more:
            return kept
        kept |= more


def tensor(t: Tensor) -> torch.Tensor:
    """The fake tensor."""
    val = t[0].meta["val"]
    made: torch.Tensor = val if isinstance(val, torch.Tensor) else val[t[1]]
    return made


def groups(edit: Editor, region: Region) -> dict[fx.Node, fx.Node]:
    """Op -> the first op of its group: ops of one phase that hand slices to each other."""
    late = depend_on_gradients(edit.captured)
    first = {n: n for n in region.cuts}

    def find(n: fx.Node) -> fx.Node:
        while first[n] is not n:
            n = first[n]
        return n

    for n, cut in region.cuts.items():
        for a, dim in zip(tensor_arguments(n), cut.ins, strict=True):
            p, j = source(a)
            if dim is not None and p in region.cuts and region.cuts[p].outs[j] == dim and (p in late) == (n in late):
                one, two = sorted((find(n), find(p)), key=edit.place)
                first[two] = one
    return {n: find(n) for n in region.cuts}


# -- growing ----------------------------------------------------------------------------------------------------------
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
