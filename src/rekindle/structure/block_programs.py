"""Ways to run the backward of a block, recomputations included, from which `hierarchical` chooses options."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..kernels import blocks
from ..kernels.arrays import Rows
from ..kernels.modes import HOLD, KEEP, TRANSIENT, Scratch, expand, new_scratch
from ..kernels.order import hoist
from .blocks import Block

# About so many numbers of freed values are tried, once over all candidates and once over those that cost anything. A guess.
DROP_COUNTS = 8


class Programs:
    """Programs that may run as the backward of a block, each int64 ids of its ops; the plain one first.

    Values are freed early in order of their cost per byte to recompute. The freed values are recomputed once and held to
    their last use; or at each use; or the cheapest of them at each use and the others once. Backward runs in the order of
    the graph, or every op that frees more than it makes runs as soon as it can. Some programs may be equal.

    prices : float64 [programs, 3]; `Block.quick` of each.
    """

    def __init__(self, block: Block):
        self.block = block
        prices = [np.array([block.quick(block.plain)])]
        if len(block.plain) and block.stage < block.chain.turn:
            prices += [block.prices(order, self._rows, self._drops, self._scratch) for order in self._orders]
        self.prices = np.concatenate(prices)

    def __getitem__(self, k: int) -> np.ndarray:
        """Program k."""
        if k == 0:
            return self.block.plain
        order, row = divmod(k - 1, len(self._rows))
        scratch = self._scratch
        m = expand(self._orders[order], self._rows[row], self._drops, self.block.arrays, scratch)
        runs = scratch.runs[:m]
        return runs[int((runs == self.block.turn).argmax()) + 1 :].copy()

    @cached_property
    def _outline(self) -> tuple[np.ndarray, Rows, np.ndarray]:
        return blocks.outline(self.block.arrays, self.block.turn)  # type: ignore[no-any-return]

    @cached_property
    def _end_of_forward(self) -> int:
        """Position right after the turn in the order of the needed ops."""
        return int(np.searchsorted(self._outline[0], self.block.turn)) + 1

    @cached_property
    def _orders(self) -> tuple[np.ndarray, np.ndarray]:
        order, before, _ = self._outline
        return order, hoist(order, self._end_of_forward, before, self.block.arrays)

    @cached_property
    def _drops(self) -> Rows:
        """All candidates may be freed where forward ends."""
        order, _, candidates = self._outline
        ptr = np.where(np.arange(len(order) + 1) > self._end_of_forward, len(candidates), 0)
        return Rows(ptr, candidates)

    @cached_property
    def _scratch(self) -> Scratch:
        order, a = self._outline[0], self.block.arrays
        return new_scratch(len(a.bytes), len(a.recompute), 40 * len(order) + 1000)  # type: ignore[no-any-return]

    @cached_property
    def _rows(self) -> np.ndarray:
        """int8 [rows, values]: the modes to try."""
        block, candidates = self.block, self._outline[2]
        counts = [(0, 0)]
        density = block.weights[block.arrays.producer[candidates]] / block.size[candidates]
        ranks = np.argsort(density, kind="stable")
        if len(candidates):
            density = density[ranks]
            cheapest = int(np.searchsorted(density, density[0], "right"))
            counts += [(c, t) for c in _drop_counts(density) for t in sorted({0, min(c, cheapest), c})]
        freed, transient = np.array(counts).T
        rows = np.full((len(counts), len(block.arrays.bytes)), KEEP, np.int8)
        place = np.arange(len(candidates))
        rows[:, candidates[ranks]] = np.where(
            place < transient[:, None], TRANSIENT, np.where(place < freed[:, None], HOLD, KEEP)
        )
        return rows


def _drop_counts(density: np.ndarray) -> list[int]:
    """The numbers of freed values to try. density : cost per byte of the candidates, rising."""
    n, wanted = len(density), DROP_COUNTS
    steps = np.append(np.flatnonzero(np.diff(density) > 1e-9 * density[1:]) + 1, n)
    free = int(np.searchsorted(density, 0.0, "right"))  # so many cost nothing to recompute
    even = np.concatenate([np.linspace(1, n, wanted), np.linspace(free, n, wanted + 1)[1:]]).astype(np.int64)
    counts: list[int] = np.unique(np.concatenate([steps[:: -(-len(steps) // wanted)], even[even > 0]])).tolist()
    return counts
