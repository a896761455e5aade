"""The values that can be freed between forward and backward, and the runs that follow from freeing them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from ..kernels.arrays import Rows
from ..kernels.modes import HOLD, KEEP, expand, new_scratch
from ..model.graph import Graph


class Dropping:
    """The decisions that a graph offers: each value that may be freed early is kept, held or transient (`kernels.modes`).

    Attributes
    ----------
    order : int64; the needed ops in baseline order.
    candidates : int64; values that may be freed early: made by an op that may run twice, before the drop position.
    drop_at : int64 [values]; position in `order` at which a value that is not kept is freed, -1: never.
        Where the graph has a boundary (or marks backward ops) that is where forward ends; elsewhere it is the start
        of the longest wait between two uses of the value.
    end_of_forward : position in `order` right after the boundary, or of the first backward op, or None.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.order = np.flatnonzero(graph.needed).astype(np.int64)
        position = np.full(len(graph.ops), -1, np.int64)
        position[self.order] = np.arange(len(self.order))
        self.end_of_forward = self._end_of_forward()
        self.drop_at = np.full(len(graph.values), -1, np.int64)
        a = graph.arrays
        for v, readers in enumerate(graph.consumers):
            p = a.producer[v]
            if p < 0 or position[p] < 0 or not a.recompute[p] or not a.bytes[v]:  # a value of no bytes is kept for free
                continue
            uses = [int(position[o]) for o in (p, *readers) if position[o] >= 0]
            if self.end_of_forward is not None:
                # Also values that backward does not read: keeping one can spare recomputing others.
                if uses[0] < self.end_of_forward and not a.keep[v]:
                    self.drop_at[v] = self.end_of_forward
            elif len(uses) > 1 and not a.keep[v]:
                wait, start = max((b - u, -u) for u, b in zip(uses, uses[1:], strict=False))
                if wait > 1:
                    self.drop_at[v] = 1 - start
        self.candidates = np.flatnonzero(self.drop_at >= 0).astype(np.int64)

    def _end_of_forward(self) -> int | None:
        """Position in `order` right after the boundary, or of the first backward op, or None."""
        for i, o in enumerate(self.order):
            if o == self.graph.boundary:
                return i + 1
        for i, o in enumerate(self.order):
            if self.graph.ops[o].backward:
                return i
        return None

    @cached_property
    def drops(self) -> Rows:
        """The values that are freed, unless kept, before each position of `order`."""
        by = np.argsort(self.drop_at[self.candidates], kind="stable")
        ids = self.candidates[by]
        ptr = np.searchsorted(self.drop_at[ids], np.arange(len(self.order) + 1)).astype(np.int64)
        return Rows(ptr, ids)

    def all(self, mode: int) -> np.ndarray:
        """int8 [values]: every value in one mode."""
        return np.full(len(self.graph.values), mode, np.int8)

    def runs(self, modes: np.ndarray, cap: int | None = None) -> list[int] | None:
        """The ops in the order in which they run, or None where that takes more than `cap` runs."""
        most_runs = cap if cap is not None else 40 * len(self.order) + 1000
        scratch = new_scratch(len(self.graph.values), len(self.graph.ops), most_runs)
        m = expand(self.order, modes, self.drops, self.graph.arrays, scratch)
        return None if m < 0 else scratch.runs[:m].tolist()


def runs_from_saved(graph: Graph, saved: Iterable[int], dropping: Dropping | None = None) -> list[int]:
    """The runs of a plan that saves the values `saved` (ids) for backward. Every other value that may be freed is
    recomputed when backward first needs it and then stays until its last use: each op runs at most twice.

    dropping : the `Dropping` of the graph, where the caller has it already.
    """
    d = dropping or Dropping(graph)
    modes = d.all(HOLD)
    modes[list(saved)] = KEEP
    runs = d.runs(modes, cap=2 * len(d.order) + 1)
    assert runs is not None
    return runs
