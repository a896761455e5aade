"""The working set of each op of a captured step, as it would be if some ops ran in slices: no graph is made for it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from torch import fx

from ...model.floor import working_set
from ...model.graph import OPERATOR
from ..lowering.lowered import Lowered
from ..lowering.phases import depend_on_gradients
from ..lowering.shape_only import is_stand_in
from ..operators.node_tensors import storage_bytes
from .cuts import SUM, cuts_of, tensor_arguments
from .region import Region, put_together, source, tensor_nodes


class WorkingSets:
    """The working sets of the ops of a lowered step.

    bytes : int64 [ops]. nodes : the captured op behind each op, None for others. late : the nodes that depend on gradients.
    cuts_of : the ways to cut an op, remembered.
    """

    def __init__(self, low: Lowered):
        self.low, self.late = low, depend_on_gradients(low.captured)
        self.cuts_of = cache(cuts_of)
        self.nodes = [c.node if c.kind == OPERATOR else None for c in low.calls]
        self._place = {n: i for i, n in enumerate(self.nodes) if n is not None}
        ops = range(len(self.nodes))
        self.bytes = np.array([working_set(low.graph, i) if low.graph.needed[i] else 0 for i in ops], np.int64)

    @property
    def largest(self) -> int:
        """The largest working set in bytes."""
        return int(self.bytes.max(initial=0))

    def cut(self, region: Region) -> np.ndarray:
        """int64 [ops]: about the bytes that each op, or a slice of it, would need with a region in slices.

        While the last slices run, all tensors that are put together are there.
        """
        found = self.bytes.copy()
        whole = self._whole(region)
        for n in region.cuts:
            if n in self._place:
                made = ((self.low.part_of(a)[0], size) for a, size in whole.items())
                beside = sum(size for m, size in made if (m in self.late) == (n in self.late) and m is not n)
                needs = self._slice(n, region, beside)
                i = self._place[n]
                found[i] = max(needs, self.bytes[i]) if n in region.kept else needs
        return found

    def together(self, region: Region) -> int:
        """Bytes of all tensors of a region that are put together, or added up."""
        cuts = region.cuts
        added = sum(
            storage_bytes(a.meta["val"]) for n in cuts for j, a in tensor_nodes(n) if cuts[n].outs[j] == SUM
        )  # fmt: skip
        return added + sum(self._whole(region).values())

    def _whole(self, region: Region) -> dict[fx.Node, int]:
        tensors = [a for n in region.cuts for _, a in tensor_nodes(n) if self._together(n, a, region)]
        return {a: storage_bytes(a.meta["val"]) for a in tensors}

    def _together(self, n: fx.Node, a: fx.Node, region: Region) -> bool:
        return region.cuts[n].outs[source(a)[1]] != SUM and put_together(a, region, self.low.captured, views=False)

    def _slice(self, n: fx.Node, region: Region, beside: int) -> int:
        """Bytes that one slice of an op needs. beside : bytes of other tensors that are put together meanwhile."""
        cut, held = region.cuts[n], dict[Any, float]()
        for a, dim in zip(tensor_arguments(n), cut.ins, strict=True):
            if is_stand_in(a) or self._is_given(a):
                continue
            val, (p, j) = a.meta["val"], source(a)
            size = float(storage_bytes(val))
            if dim is not None and p in region.cuts and region.cuts[p].outs[j] == dim:
                size /= region.slices
            held[val.untyped_storage()._cdata] = size
        total = sum(held.values())
        sizes = list(held.values())  # over which a tensor may be written that is put together

        def over(size: float) -> float:
            if size in sizes:
                sizes.remove(size)
                return 0.0
            return size

        for j, a in tensor_nodes(n):
            size, out = storage_bytes(a.meta["val"]), cut.outs[j]
            if out == SUM:
                total += 2 * size
            elif isinstance(out, int):
                total += size / region.slices
                if put_together(a, region, self.low.captured):
                    total += over(size)
        return int(total + (over(beside) if beside else 0))

    def _is_given(self, a: fx.Node) -> bool:
        """Whether the tensor is held by the caller."""
        return self.low.part_of(a)[0].op != "call_function"
