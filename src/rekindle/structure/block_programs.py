"""Ways to run the backward of a block, recomputations included, from which `hierarchical` chooses options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..kernels.arrays import compressed_rows
from ..kernels.modes import HOLD, KEEP, TRANSIENT
from ..kernels.order import hoist
from .blocks import Block
from .saved import Dropping


@dataclass(frozen=True)
class ProgramSettings:
    """How many programs of a block are tried. The number is a guess.

    drop_counts : numbers of freed values that are tried, about: once spread over all candidates and once over those that
        cost anything to recompute.
    """

    drop_counts: int = 8


SETTINGS = ProgramSettings()


def programs(block: Block) -> list[np.ndarray]:
    """Programs that may run as the backward of a block, each int64 ids of its ops; the plain one first.

    Values are freed early in order of their cost per byte to recompute. The freed values are recomputed once and held to
    their last use; or at each use; or the cheapest of them at each use and the others once. Backward runs in the order of
    the graph, or every op that frees more than it makes runs as soon as it can.
    """
    found = {block.plain.tobytes(): block.plain}
    if len(block.plain) and block.stage < block.chain.turn:
        dropping = Dropping(block.graph)
        candidates = dropping.candidates
        density = block.weights[block.graph.arrays.producer[candidates]] / block.size[candidates]
        ranked = candidates[np.argsort(density, kind="stable")]
        density = np.sort(density)
        for order in (dropping.order, _hoisted(dropping)):
            dropping.order = order
            for modes in _modes(dropping, ranked, density):
                if (runs := dropping.runs_array(modes)) is None:
                    continue  # far more runs than ops: no program of that length is worth its time
                program = runs[int((runs == block.turn).argmax()) + 1 :]
                if (key := program.tobytes()) not in found:
                    found[key] = program.copy()
    return list(found.values())


def _modes(dropping: Dropping, ranked: np.ndarray, density: np.ndarray) -> Iterator[np.ndarray]:
    """The modes to try, int8 [values]. ranked : candidates by rising cost per byte. density : that cost of each."""
    yield dropping.all(KEEP)
    n, counts_wanted = len(ranked), SETTINGS.drop_counts
    if not n:
        return
    steps = np.append(np.flatnonzero(np.diff(density) > 1e-9 * density[1:]) + 1, n)
    free = int(np.searchsorted(density, 0.0, "right"))  # so many cost nothing to recompute
    even = np.concatenate([np.linspace(1, n, counts_wanted), np.linspace(free, n, counts_wanted + 1)[1:]])
    even = even.astype(np.int64)
    counts = np.unique(np.concatenate([steps[:: -(-len(steps) // counts_wanted)], even[even > 0]]))
    cheapest = int(np.searchsorted(density, density[0], "right"))
    for count in counts.tolist():
        for transient in sorted({0, min(count, cheapest), count}):
            row = dropping.all(KEEP)
            row[ranked[:count]] = HOLD
            row[ranked[:transient]] = TRANSIENT
            yield row


def _hoisted(dropping: Dropping) -> np.ndarray:
    """The order in which ops of backward that free more than they make run as soon as they can."""
    graph = dropping.graph
    producer = graph.arrays.producer
    before = compressed_rows([sorted({int(p) for p in producer[list(op.inputs)] if p >= 0}) for op in graph.ops])
    return hoist(dropping.order, dropping.end_of_forward or 0, before, graph.arrays)
