"""Buffers that slices are written into: a tensor that the region itself reads for the last time serves where it can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import fx

from ..lowering.editing import Editor
from ..lowering.shape_only import is_stand_in
from ..operators.node_tensors import is_member, is_view, storage_bytes
from .cuts import tensor_arguments
from .region import Region, Tensor, put_together, source, tensor, tensor_nodes


def outside(edit: Editor, region: Region) -> Iterator[tuple[Tensor, fx.Node]]:
    """The tensors of a region that are put together, with the nodes that stand for them."""
    for n in sorted(region.cuts, key=edit.place):
        for j, a in tensor_nodes(n):
            if put_together(a, region, edit.captured, views=False):
                yield (n, j), a


class Over:
    """Finds the buffers of one region. groups : as `region.groups`."""

    def __init__(self, edit: Editor, region: Region, groups: Mapping[fx.Node, fx.Node]):
        self.edit, self.region, self.cuts, self.groups = edit, region, region.cuts, groups
        self._behind: dict[fx.Node, set[fx.Node]] = {}
        self._after: set[fx.Node] | None = None

    def found(self) -> dict[Tensor, fx.Node]:
        """Tensors that are put together, each with an input of the region of which slices are read for the last time as slices
        of the tensor are made."""
        found: dict[Tensor, fx.Node] = {}
        for t, _ in outside(self.edit, self.region):
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
            self._after = set(self.cuts) - self.region.kept
            for x in sorted(self.edit.captured.nodes, key=self.edit.place):
                if any(y in self._after for y in x.all_input_nodes):
                    self._after.add(x)
        return n in self._after


def _alike(one: torch.Tensor, two: torch.Tensor) -> bool:
    return (one.shape, one.stride(), one.dtype, one.device) == (two.shape, two.stride(), two.dtype, two.device)
