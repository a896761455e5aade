"""A region of ops that runs in slices along one dimension: in place of each op there are several, of a part of the tensor each.

Tensors inside the region are never whole. A tensor that is read outside is put together: each slice is written into one
buffer, over a tensor of the region's own inputs where that one is read for the last time. Results that every slice gives a part
of (the gradient of a weight, where the batch is cut) are added up.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from ..capture.captured import Writing
from ..lowering.editing import Editor, Key
from ..lowering.phases import computed_from
from ..lowering.shape_only import is_stand_in
from ..operators.memory_order import has_gaps
from ..operators.node_tensors import is_member, is_view, storage_bytes
from ..operators.table import wants_dense
from .closeness import SUMMED, UNPROVEN
from .cuts import SUM, sliced_call, tensor_arguments
from .region import SLICE, Region, Tensor, groups, put_together, source, tensor, tensor_nodes, units

aten = torch.ops.aten

# Slices of tensors up to this size are put together by one `cat`, which holds them twice. A guess.
JOINED_MOST_BYTES = 2**20


def cut_into_slices(edit: Editor, region: Region) -> None:
    """Let the ops of the region run in slices. The editor must be `at_work`."""
    _Cutting(edit, region).run()


class _Cutting:
    """One region while it is cut.

    members : op -> its number in the region. made : op -> its slices.
    whole : tensor -> the node of the tensor that was put together.
    over : tensor that is put together -> the input of the region over which its slices are written.
    """

    def __init__(self, edit: Editor, region: Region):
        self.edit, self.region, self.cuts, self.slices = edit, region, region.cuts, region.slices
        self.size = units(region.cuts)
        if self.size < region.slices:
            raise ValueError(f"a region of size {self.size} cannot run in {region.slices} slices")
        self.members = {n: i for i, n in enumerate(sorted(region.cuts, key=edit.place))}
        self.groups = groups(edit, region)
        self.made: dict[fx.Node, list[fx.Node]] = {}
        self.whole: dict[Tensor, fx.Node] = {}
        self.parts: dict[tuple[fx.Node, int, int], fx.Node] = {}
        self.taken: dict[tuple[Tensor, int], fx.Node] = {}
        self.over = _Over(edit, region, self.groups).found()
        self.under = {a: t for t, a in self.over.items()}

    def run(self) -> None:
        self.made = {n: [] for n in self.members}
        for n in [
            n for n in self.edit.inner if source(n)[0] in self.members and any(u in self.members for u in n.users)
        ]:
            del self.edit.inner[n]  # ops of the region read slices of it
        for first in dict.fromkeys(self.groups[n] for n in self.members):
            group = [n for n in self.members if self.groups[n] is first]
            for i in range(self.slices):
                for n in group:
                    self._made(n, i)
        for t in list(_outside(self.edit, self.region)):
            self.edit.replace(t[1], self._together(t[0]))
        for n in self.members:
            if n in self.region.kept:
                continue
            self.edit.writing.pop(n, None)
            for u in n.users:
                self.edit.leave(u)
            self.edit.leave(n)

    def _made(self, n: fx.Node, i: int) -> fx.Node:
        """Slice i of an op, made now if it is not there yet: where an op reads a tensor of its own group whole."""
        while i >= len(self.made[n]):
            self.made[n].append(self._slice(n, len(self.made[n])))
        return self.made[n][i]

    def _slice(self, n: fx.Node, i: int) -> fx.Node:
        """Slice i of an op."""
        cut, at = self.cuts[n], self._at(n, i)
        given = tensor_arguments(n)
        pieces: list[fx.Node] = []
        for a, dim in zip(given, cut.ins, strict=True):
            pieces.append(a if is_stand_in(a) else self._piece(a, dim, i, at, n))
        for k, (a, dim) in enumerate(zip(given, cut.ins, strict=True)):
            if is_stand_in(a):
                pieces[k] = self._stand_in(a, dim, pieces[given.index(a.args[0])], i, at)  # type: ignore[arg-type]
        begin, end = self._range(i, self.size)
        if wants_dense(n.target):
            ways = zip(pieces, cut.ins, strict=True)
            pieces = [p if d is None or is_stand_in(p) else self._without_gaps(p, at) for p, d in ways]
        target, args, kwargs = sliced_call(n, cut, pieces, begin, end, self.size)
        if i and self._sums_products(n):
            acc = self.whole.get((n, 0), self.made[n][0])
            made = self._call(aten.addmm.default, (acc, *args), n, at)
            made.meta[SUMMED] = True
            self.whole[n, 0] = made
            return made
        made = self._call(target, args, n, at, kwargs)
        if n in self.region.unproven:
            made.meta[UNPROVEN] = True
        if n in self.edit.writing and n not in self.region.kept:  # one that runs whole too writes then
            self.edit.writing[made] = self._writing(n, made, i, at)
        return made

    def _sums_products(self, n: fx.Node) -> bool:
        return n.target is aten.mm.default and self.cuts[n].outs[0] == SUM

    def _piece(self, a: fx.Node, dim: int | None, i: int, at: Key, reader: fx.Node) -> fx.Node:
        """The part of argument `a` that slice i reads, or the whole tensor."""
        t = source(a)
        if t[0] in self.cuts and self.cuts[t[0]].outs[t[1]] == dim and (dim is not None or not tensor(t).numel()):
            return self._member(t, i)
        base = self._together(t) if t[0] in self.cuts else a
        if dim is None:
            return base
        if a in self.under and self.groups[reader] == self.groups[self.under[a][0]]:
            base = self._chain(self.under[a], i)
        return self._part(base, dim, i, at)

    def _part(self, base: fx.Node, dim: int, i: int, at: Key) -> fx.Node:
        """A view of part i of a whole tensor."""
        key = (base, dim, i)
        if key not in self.parts:
            begin, end = self._range(i, int(base.meta["val"].shape[dim]))
            self.parts[key] = self._call(aten.slice.Tensor, (base, dim, begin, end), base, at)
        return self.parts[key]

    def _without_gaps(self, piece: fx.Node, at: Key) -> fx.Node:
        """The piece, or a copy of it without gaps, its dimensions in the same order in memory."""
        if not has_gaps(piece.meta["val"]):
            return piece
        # a copy for each reader: one that backward reads again would be held until then
        return self._call(aten.clone.default, (piece,), piece, at, {"memory_format": torch.preserve_format})

    def _stand_in(self, a: fx.Node, dim: int | None, memory: fx.Node, i: int, at: Key) -> fx.Node:
        shape: list[int] = list(a.args[1])  # type: ignore[arg-type]
        if dim is not None:
            begin, end = self._range(i, shape[dim])
            shape[dim] = end - begin
        return self._call(aten.as_strided.default, (memory, shape, [0] * len(shape)), a, at)

    def _member(self, t: Tensor, i: int) -> fx.Node:
        """The tensor in slice i of an op."""
        n, j = t
        made = self._made(n, i)
        if isinstance(made.meta["val"], torch.Tensor):
            return made
        key = (made, j, -1)
        if key not in self.parts:
            self.parts[key] = self._call(operator.getitem, (made, j), n, (*self._at(n, i), j))
        return self.parts[key]

    def _together(self, t: Tensor) -> fx.Node:
        """The whole tensor."""
        return self._chain(t, self.slices)

    def _chain(self, t: Tensor, i: int) -> fx.Node:
        """The whole tensor with its first i slices written, or added up."""
        n, j = t
        dim = self.cuts[n].outs[j]
        if dim == SUM and self._sums_products(n):
            return self._made(n, self.slices - 1)
        if (t, i) in self.taken:
            return self.taken[t, i]
        like = tensor(t)
        if dim == SUM and i == 1:
            made = self._member(t, 0)
        elif dim == SUM:
            terms = (self._chain(t, i - 1), self._member(t, i - 1))
            made = self._call(aten.add.Tensor, terms, n, self._at(n, i - 1, 0.5))
            made.meta[SUMMED] = True
        elif not like.numel():
            made = self._member(t, 0)  # an empty result is the same in every slice
        elif not isinstance(dim, int):
            raise ValueError(f"{n} has no dimension that is cut")
        elif self._is_joined(like) and t not in self.over:
            slices = [self._member(t, k) for k in range(self.slices)]
            made = self._call(aten.cat.default, (slices, dim), n, self._at(n, self.slices - 1, 0.5))
        elif i == 0:
            made = self.over.get(t) or self._buffer(n, like)
        else:
            begin, end = self._range(i - 1, int(like.shape[dim]))
            args = (self._chain(t, i - 1), self._member(t, i - 1), dim, begin, end)
            made = self._call(aten.slice_scatter.default, args, n, self._at(n, i - 1, 0.5))
        now = made.meta["val"]
        if i and (now.shape, now.stride(), now.dtype) != (like.shape, like.stride(), like.dtype):
            raise ValueError(f"{n.target} in slices lays its result out in another way")
        self.taken[t, i] = made
        return made

    def _is_joined(self, like: torch.Tensor) -> bool:
        """Whether slices are put together by one `cat`, whose result lies in memory in the usual order of dimensions."""
        return like.is_contiguous() and like.numel() * like.element_size() <= JOINED_MOST_BYTES

    def _buffer(self, n: fx.Node, like: torch.Tensor) -> fx.Node:
        kwargs = {"dtype": like.dtype, "layout": torch.strided, "device": like.device, "pin_memory": False}
        args = (list(like.shape), list(like.stride()))
        return self._call(aten.empty_strided.default, args, n, self._at(n, 0, -0.5), kwargs)

    def _writing(self, n: fx.Node, made: fx.Node, i: int, at: Key) -> Writing:
        """The writes of the first run of slice i, which are a part of the whole op's writes."""
        old, like = self.edit.writing[n], n.args[0].meta["val"]  # type: ignore[union-attr]
        given = list(old.args)
        for k, a in enumerate(given):
            if k < len(made.args) and isinstance(n.args[k], fx.Node):
                given[k] = made.args[k]
            elif isinstance(a, fx.Node) and a.meta["val"].shape == like.shape[1:2]:
                given[k] = self._part(a, 0, i, at)
        return Writing(old.target, tuple(given))

    def _call(self, target: Any, args: Any, like: fx.Node, at: Key, kwargs: Any = None) -> fx.Node:
        made = self.edit.call(target, args, like, at, kwargs)
        made.meta[SLICE] = True
        return made

    # -- where things stand ------------------------------------------------------------------------------------------
    def _at(self, n: fx.Node, i: int, after: float = 0.0) -> Key:
        """The place of slice i of an op: a group runs slice by slice."""
        first = self.groups[n]
        return (*self.edit.place(first), float(i), float(self.members[n]), after)

    def _range(self, i: int, size: int) -> tuple[int, int]:
        """Begin and end of slice i along a dimension."""
        unit = size // self.size
        return i * self.size // self.slices * unit, (i + 1) * self.size // self.slices * unit


def _outside(edit: Editor, region: Region) -> Iterator[tuple[Tensor, fx.Node]]:
    """The tensors of a region that are put together, with the nodes that stand for them."""
    for n in sorted(region.cuts, key=edit.place):
        for j, a in tensor_nodes(n):
            if put_together(a, region, edit.captured, views=False):
                yield (n, j), a


# -- buffers ----------------------------------------------------------------------------------------------------------
class _Over:
    """Finds the buffers of one region into which slices are written: a tensor that the region itself reads for the last time
    serves where it can. groups : as `region.groups`."""

    def __init__(self, edit: Editor, region: Region, groups: Mapping[fx.Node, fx.Node]):
        self.edit, self.region, self.cuts, self.groups = edit, region, region.cuts, groups
        self._behind: dict[fx.Node, set[fx.Node]] = {}
        self._after: set[fx.Node] | None = None

    def found(self) -> dict[Tensor, fx.Node]:
        """Tensors that are put together, each with an input of the region of which slices are read for the last time as slices
        of the tensor are made."""
        found: dict[Tensor, fx.Node] = {}
        for t, _ in _outside(self.edit, self.region):
            dim, like = self.cuts[t[0]].outs[t[1]], tensor(t)
            if t[0] in self._behind_whole(self.groups[t[0]]):
                continue
            for a in self._inputs(self.groups[t[0]]):
                if a in found.values() or not isinstance(dim, int):
                    continue
                val = a.meta["val"]
                whole = storage_bytes(val) == val.numel() * val.element_size()
                if _alike(val, like) and whole and not is_view(a) and self._dies_here(a, dim, self.groups[t[0]]):
                    found[t] = a
                    break
        return found

    def _behind_whole(self, group: fx.Node) -> set[fx.Node]:
        """The ops that need a whole tensor which the group makes: all slices of an op of it come before them."""
        if group not in self._behind:
            found: set[fx.Node] = set()
            for n in sorted(self.edit.captured.nodes, key=self.edit.place):
                if is_member(n) or is_stand_in(n):
                    continue
                given = [a for a in tensor_arguments(n) if not is_stand_in(a)]
                if any(source(a)[0] in found for a in given) or self._reads_whole(n, group):
                    found.add(n)
            self._behind[group] = found
        return self._behind[group]

    def _reads_whole(self, n: fx.Node, group: fx.Node) -> bool:
        """Whether an op reads a whole tensor that the group makes."""
        given = tensor_arguments(n)
        dims = self.cuts[n].ins if self.groups.get(n) is group else (None,) * len(given)
        made = [(*source(a), dim) for a, dim in zip(given, dims, strict=True) if not is_stand_in(a)]
        return any(self.groups.get(p) is group and (dim is None or self.cuts[p].outs[j] != dim) for p, j, dim in made)

    def _inputs(self, group: fx.Node) -> list[fx.Node]:
        """The tensors that ops of a group read and ops outside of the region make."""
        members = sorted((n for n in self.cuts if self.groups[n] is group), key=self.edit.place)
        read = dict.fromkeys(a for n in members for a in tensor_arguments(n) if not is_stand_in(a))
        return [a for a in read if a.op == "call_function" and source(a)[0] not in self.cuts]

    def _dies_here(self, a: fx.Node, dim: int, group: fx.Node) -> bool:
        """Whether ops of the group alone read `a`, cut along this dimension, or ops that do not wait for the region."""
        for u in a.users:
            if is_stand_in(u) and all(r in self.cuts and r not in self.region.kept for r in u.users):
                continue
            if u not in self.cuts or u in self.region.kept:
                if self._waits(u):
                    return False
                continue
            read = {d for x, d in zip(tensor_arguments(u), self.cuts[u].ins, strict=True) if x is a}
            if self.groups[u] is not group or read != {dim}:
                return False
        return not (a in self.edit.captured.outputs or a in self.edit.captured.gradients.values())

    def _waits(self, n: fx.Node) -> bool:
        """Whether the op, or the output, needs a result of the region."""
        if n.op == "output":
            return True
        if self._after is None:
            in_order = sorted(self.edit.captured.nodes, key=self.edit.place)
            self._after = computed_from(set(self.cuts) - self.region.kept, in_order)
        return n in self._after


def _alike(one: torch.Tensor, two: torch.Tensor) -> bool:
    return (one.shape, one.stride(), one.dtype, one.device) == (two.shape, two.stride(), two.dtype, two.device)
