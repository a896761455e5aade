"""Options of a block: a few of its backward programs that are best for some budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ..kernels.rotor import Stages
from ..model.graph import Graph
from ..structure.block_programs import Programs
from ..structure.blocks import SIZES, Block, Kinds
from ..structure.chain import Chain

SAVED, SAVE_PEAK, SAVE_TIME, ALONE_PEAK, ALONE_TIME, BACKWARD_PEAK, BACKWARD_TIME = range(
    len(SIZES)
)  # columns of sizes


MOST_OPTIONS = 12  # of a block, about; a guess
# Numbers of blocks like one that may stand behind it, for which options are chosen: with many, saved bytes weigh more against
# the peak. Guesses.
PEERS = (1, 3, 10, 40)


@dataclass(frozen=True)
class Planned:
    """The options of a block: sizes float64 [options, 7] as `Block.sizes`, and the backward programs."""

    sizes: np.ndarray
    programs: list[np.ndarray]


class KnownBlocks:
    """The options of all blocks planned so far; blocks with the same key are planned once.

    more : further backward programs of a block.
    """

    def __init__(self, graph: Graph, weights: np.ndarray, more: Callable[[Block], Iterable[np.ndarray]] = lambda _: ()):
        self.kinds, self.more = Kinds(graph, weights), more
        self.planned: dict[object, Planned] = {}

    def plan(self, block: Block) -> Planned:
        """The options of a block."""
        if block.key not in self.planned:
            tried, more = Programs(block), list(self.more(block))
            prices = [tried.prices, *(np.array([block.quick(p)]) for p in more)]
            kept = best_of(*np.concatenate(prices).T)
            first = len(tried.prices)
            programs = [tried[k] if k < first else more[k - first] for k in kept]
            self.planned[block.key] = Planned(np.array([block.sizes(p) for p in programs]), programs)
        return self.planned[block.key]


def options(chain: Chain, known: KnownBlocks) -> tuple[Stages, list[list[np.ndarray]]]:
    """The options of every block of a chain, and per block and option its program (op ids of the graph)."""
    blocks = [Block(chain, stage, known.kinds) for stage in range(len(chain))]
    found = [known.plan(block) for block in blocks]
    table = np.zeros((len(SIZES), len(blocks), max(len(p.programs) for p in found)))
    table[[SAVE_TIME, ALONE_TIME, BACKWARD_TIME]] = np.inf  # of options that a block does not have
    for stage, (block, p) in enumerate(zip(blocks, found, strict=True)):
        table[:, stage, : len(p.programs)] = p.sizes.T
        table[SAVE_PEAK, stage] += block.before
        table[[ALONE_PEAK, BACKWARD_PEAK], stage] += block.around
    keeping = np.append(0, np.cumsum(chain.keeping))
    table[[SAVED, SAVE_PEAK, ALONE_PEAK, BACKWARD_PEAK]] += chain.keeping[:, None]
    stages = Stages(
        hold=chain.hold + np.maximum(0, keeping[:-1][None, :] - keeping[:-1][:, None]),
        passing=chain.passing + np.maximum(0, keeping[1:][None, :] - keeping[:-1][:, None]),
        gradient=chain.gradient,
        skip_time=chain.times(known.kinds.weights).skip,
        saved=table[SAVED].astype(np.int64),
        save_peak=table[SAVE_PEAK].astype(np.int64),
        save_time=table[SAVE_TIME],
        alone_peak=table[ALONE_PEAK].astype(np.int64),
        alone_time=table[ALONE_TIME],
        backward_peak=table[BACKWARD_PEAK].astype(np.int64),
        backward_time=table[BACKWARD_TIME],
    )
    return stages, [[block.ops[q] for q in p.programs] for block, p in zip(blocks, found, strict=True)]


def best_of(saved: np.ndarray, peak: np.ndarray, time: np.ndarray) -> list[int]:
    """Indices of the programs that are best where few or many like blocks stand behind one; the first is always kept."""
    measures = [peak, saved, *(n * saved + peak for n in PEERS)]
    kept: dict[int, None] = {0: None}
    for measure in measures:
        front = undominated(measure, time)
        ranks = np.unique(np.linspace(0, len(front) - 1, max(2, MOST_OPTIONS // 3)).round().astype(np.int64))
        kept.update(dict.fromkeys(front[r] for r in ranks))
    return list(kept)


def undominated(measure: np.ndarray, cost: np.ndarray) -> list[int]:
    """Indices that no other matches in both, by rising measure."""
    out: list[int] = []
    for k in np.lexsort((cost, measure)).tolist():
        if not out or cost[k] < cost[out[-1]] * (1 - 1e-9):
            out.append(k)
    return out


def pad(x: np.ndarray, most: int) -> np.ndarray:
    """Widen rows to `most` options; the options that a block does not have take infinite time."""
    fill = np.inf if x.dtype.kind == "f" else 0
    return np.concatenate([x, np.full((len(x), most - x.shape[1]), fill, x.dtype)], 1)
