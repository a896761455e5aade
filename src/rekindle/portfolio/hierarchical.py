"""Blocks are planned one by one, each in several ways; dynamic programming over the chain of blocks joins them.

The scheme of Rockmate (Zhao, Le Hellard, Eyraud-Dubois, Gusak, Beaumont, ICML 2023, arXiv:2307.01236): options for each
block, joined by the dynamic programming of rotor (arXiv:1911.13214). New here: levels of what forward keeps.

Problem: the whole step, as a chain of blocks. The forward is cut where little passes; long skips and values that every
layer reads pass through all blocks in between. Where it is no chain (U-Nets, branches) it is also taken apart at its
splitting vertices alone: what lies within a skip is then one block. Each block has a set of options: which of its values
are held from its forward to its backward, and what runs as its backward, recomputations inside, weight gradients early.
They come from dropping values in order of what a byte of them costs to make again and, within skips, from this same scheme
inside the block, skip within skip, with more or less memory left to the rest of the step. Blocks that are the same are
planned once.

The join is rotor's: for each block to run it in one of its options, or to keep its input only, or nothing, and to run it
forward again later. Beyond that a stretch of blocks may go to a deeper *level*: as forward passes, it leaves behind what is
dear to make again for its bytes (the outputs of convolutions, say), and from then on passing there again costs little.
Levels are nested, and a stretch within a stretch may go further.

Optimality: of the join, for its objective: among persistent schedules of the blocks in the given options and levels, up to
memory slots. The objective takes a pass to a deeper level for one that forgets all its blocks: of those that the same pass
keeps it counts too much. None is claimed for the cuts, the options and the sets that levels keep.

Complexity: O(L S n^2 (n + K)) for n blocks, K options, S memory slots, L levels, and as much again for each size of
blocks; a few ms for each block that is like no other. n is about 60 at most: longer networks have larger blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from ..kernels import levels as level_kernel
from ..kernels import rotor as kernel
from ..model.graph import Graph
from ..model.schedule import Schedule
from ..problem import Problem, choose, register
from ..solvers.rotor import SETTINGS as ROTOR
from ..solvers.rotor import Curve, entries, thin
from ..structure.archive import Entry, pareto
from ..structure.blocks import Block, Kinds, costly, programs
from ..structure.chain import BACKWARD, Chain, chain_at, with_kept
from ..structure.cuts import closed, cuts
from ..structure.forward import Forward, forward_dag
from ..structure.runs import prune

OPTIONS = 12  # of a block, about
PEERS = (1, 3, 10, 40)  # how many blocks like it stand behind one, for which options are chosen
SIZES = (5, 10, 24)  # ops of weight in a block, at least; each makes a curve of its own
INNER = 5  # the same in a block of a block
INSIDE = 200  # and at most in a block that is divided in turn
LEAST = 300  # memory slots in any case; a long chain has fewer than a short one
WAITS = (0.0, 0.5, 1.0)  # what the rest of a step takes beside a block, as a part of what that does itself
LEVELS = 6  # sets of values kept from the first forward on
INNER_LEVELS = 2  # the same inside a block


@register(
    "hierarchical",
    graphs="any",
    objective="least time within a memory, of a chain of blocks with several options each",
    optimal="of the join: for its objective, among persistent schedules of the options, up to memory slots",
    complexity="O(L S n^2 (n + K)) for n blocks, K options, S memory slots, L levels of what forward keeps",
    citation="after Zhao, Le Hellard, Eyraud-Dubois, Gusak, Beaumont, Rockmate, ICML 2023, arXiv:2307.01236",
)
def hierarchical(problem: Problem) -> Iterator[Schedule]:
    """Options for each different block, joined over all blocks by dynamic programming; takes a budget or an overhead."""
    forward = forward_dag(problem.graph)
    if forward is None:
        yield Schedule.baseline(problem.graph, "hierarchical")
        return
    found: list[Entry] = []
    for curve in curves(problem.graph, problem.weights, forward, SIZES):
        found += entries(problem, curve)
        if problem.time_left <= 0:
            break
    chosen = thin(choose(problem, pareto(found)))
    yield from (Schedule.from_runs(problem.graph, e.runs, "hierarchical") for e in chosen)


def curves(graph: Graph, weights: np.ndarray, forward: Forward, sizes: Sequence[int]) -> Iterator[Levels]:
    """The graph as chains of blocks of each size and, where it is no chain, of closed sets."""
    known = Known(graph, weights)
    for splits in dict.fromkeys(tuple(cuts(graph, forward, size)) for size in sizes):
        yield Levels(graph, weights, forward, [*splits], known)
    if apart := closed(graph, forward, INNER, INSIDE):
        yield Levels(graph, weights, forward, apart, Known(graph, weights, divide=True))


class Known:
    """What is known of blocks, by what tells them apart. divide : whether large ones are divided in turn."""

    def __init__(self, graph: Graph, weights: np.ndarray, divide: bool = False):
        self.kinds, self.divide = Kinds(graph, weights), divide
        self.planned: dict[object, Planned] = {}

    def plan(self, block: Block) -> Planned:
        """The options of a block."""
        if block.key not in self.planned:
            self.planned[block.key] = plan(block, self.divide)
        return self.planned[block.key]


class Levels(Curve):
    """The curve of a chain of blocks, in all levels of what forward keeps.

    splits : vertices after which the forward is cut. known : of blocks, to be shared by curves of one graph.
    sets : levels beside the one on which nothing is kept.
    levels : as `kernels.levels` takes them. enter : the same.
    programs : per level, block and option what runs as backward. again : per level and block what runs as forward.
    """

    def __init__(
        self, graph: Graph, weights: np.ndarray, forward: Forward, splits: list[int], known: Known | None = None,
        sets: int = LEVELS,
    ):  # fmt: skip
        plain = chain_at(graph, forward, splits)
        chains = [plain, *with_kept(plain, reversed(costly(plain, weights, sets)))]
        known = known or Known(graph, weights)
        found = [options(c, known) for c in chains]
        self.programs = [programs for _, programs in found]
        most = max(stages.saved.shape[1] for stages, _ in found)
        padded = [[pad(x, most) if x.ndim == 2 and k >= 4 else x for k, x in enumerate(stages)] for stages, _ in found]
        self.levels = kernel.Stages(*(np.ascontiguousarray(np.stack(rows)) for rows in zip(*padded, strict=True)))
        self.enter = np.zeros((len(chains), len(chains), len(plain) + 1))
        skip = [c.times(weights).skip for c in chains]
        for here, c in enumerate(chains):
            for there in range(here + 1, len(chains)):
                more = np.maximum(0.0, c.leaving(chains[there], weights) - skip[there])
                self.enter[here, there, 1:] = np.cumsum(more)
        self.again = [[np.array([o for o in ops if o not in c.once], np.int64) for ops in c.forward] for c in chains]
        super().__init__(plain, weights)
        self.slots = max(LEAST, min(ROTOR.slots, 40 * ROTOR.slots // len(plain)))

    def beside(self, wait: int) -> Levels:
        """The curve where the rest of a larger step takes `wait` bytes at the turn."""
        other = copy(self)
        alone_peak = self.levels.alone_peak.copy()
        alone_peak[:, -1] += wait
        other.levels = self.levels._replace(alone_peak=alone_peak)
        other.whole += wait
        return other

    def solve(self) -> np.ndarray:
        self.tables = level_kernel.solve(self.levels, self.enter, self.unit, self.slots)
        return self.tables[0]

    def runs(self, slots: int) -> list[list[int]]:
        rows = level_kernel.sequence(self.levels, self.enter, self.unit, self.tables, slots).tolist()
        found = [self._runs(rows, reuse) for reuse in (False, True)]
        return found if found[0] != found[1] else found[:1]

    def _runs(self, rows: list[list[int]], reuse: bool) -> list[int]:
        """As `Chain.runs`."""
        n = len(self.chain)
        parts, behind, at_hand = [], n, [0] * n
        for what, stage, option, level in rows:
            if what == BACKWARD:
                parts.append(self.programs[level][stage][option])
                behind = stage
                continue
            ops = self.again[at_hand[stage]][stage]
            at_hand[stage] = max(at_hand[stage], level)
            parts.append(ops[self.chain.reach[ops] < behind] if reuse and behind < n else ops)
        return prune(self.chain.graph, np.concatenate(parts))


def pad(x: np.ndarray, most: int) -> np.ndarray:
    """Rows with columns for options that there are not: they take infinite time."""
    fill = np.inf if x.dtype.kind == "f" else 0
    return np.concatenate([x, np.full((len(x), most - x.shape[1]), fill, x.dtype)], 1)


@dataclass(frozen=True)
class Planned:
    """The options of a block: sizes float64 [options, 7] as `Block.sizes`, and the backward programs."""

    sizes: np.ndarray
    programs: list[np.ndarray]


def options(chain: Chain, known: Known) -> tuple[kernel.Stages, list[list[np.ndarray]]]:
    """The options of every block, and the programs in them."""
    blocks = [Block(chain, stage, known.kinds) for stage in range(len(chain))]
    found = [known.plan(block) for block in blocks]
    table = np.zeros((7, len(blocks), max(len(p.programs) for p in found)))
    table[[2, 4, 6]] = np.inf  # times of options that there are not
    for stage, (block, p) in enumerate(zip(blocks, found, strict=True)):
        table[:, stage, : len(p.programs)] = p.sizes.T
        table[1, stage] += block.before
        table[[3, 5], stage] += block.around
    keeping = np.append(0, np.cumsum(chain.keeping))
    table[[0, 1, 3, 5]] += chain.keeping[:, None]
    saved, save_peak, save_time, alone_peak, alone_time, backward_peak, backward_time = table
    stages = kernel.Stages(
        chain.hold + np.maximum(0, keeping[:-1][None, :] - keeping[:-1][:, None]),
        chain.passing + np.maximum(0, keeping[1:][None, :] - keeping[:-1][:, None]),
        chain.gradient, chain.times(known.kinds.weights).skip, saved.astype(np.int64), save_peak.astype(np.int64), save_time,
        alone_peak.astype(np.int64), alone_time, backward_peak.astype(np.int64), backward_time,
    )  # fmt: skip
    return stages, [[block.ops[q] for q in p.programs] for block, p in zip(blocks, found, strict=True)]


def plan(block: Block, divide: bool) -> Planned:
    """The options of a block. divide : whether it is divided in turn, if it is large."""
    every = [*programs(block), *(nested(block) if divide else ())]
    saved, peak, time = np.array([block.quick(p) for p in every]).T
    kept = best_of(saved, peak, time)
    return Planned(np.array([block.sizes(every[k]) for k in kept]), [every[k] for k in kept])


def nested(block: Block, smallest: int = INNER) -> Iterator[np.ndarray]:
    """What may run as the backward of a block that is divided in turn, as the inside of a skip is: its own step, planned
    as a whole step is, beside a rest of the step that takes nothing, half or all of what the block does.

    smallest : ops of weight in a block of the block, at least.
    """
    if block.kept.any() or block.stage == block.chain.turn or (forward := forward_dag(block.graph)) is None:
        return
    if (splits := divided(block.graph, forward, smallest)) is None:
        return
    known = Known(block.graph, block.weights, divide=True)
    whole = Levels(block.graph, block.weights, forward, splits, known, sets=INNER_LEVELS)
    for part in WAITS:
        curve = whole.beside(int(part * whole.whole))
        curve.aim(curve.whole)
        choices = curve.choices
        for k in np.unique(np.linspace(0, len(choices) - 1, min(OPTIONS, len(choices))).astype(np.int64)).tolist():
            for runs in curve.runs(choices[k]):
                yield np.array(runs[runs.index(block.turn) + 1 :], np.int64)


def divided(graph: Graph, forward: Forward, smallest: int) -> list[int] | None:
    """Vertices after which the step of a block is cut, None where it is small."""
    apart = closed(graph, forward, smallest, INSIDE) or cuts(graph, forward, smallest)
    return apart if len(apart) > 3 else None


def best_of(saved: np.ndarray, peak: np.ndarray, time: np.ndarray) -> list[int]:
    """What is best where few or many like it stand behind one; the first always among them."""
    measures = [peak, saved, *(n * saved + peak for n in PEERS)]
    kept: dict[int, None] = {0: None}
    for measure in measures:
        front = undominated(measure, time)
        ranks = np.unique(np.linspace(0, len(front) - 1, max(2, OPTIONS // 3)).round().astype(np.int64))
        kept.update(dict.fromkeys(front[r] for r in ranks))
    return list(kept)


def undominated(measure: np.ndarray, cost: np.ndarray) -> list[int]:
    """Indices that no other matches in both, by rising measure."""
    out: list[int] = []
    for k in np.lexsort((cost, measure)).tolist():
        if not out or cost[k] < cost[out[-1]] * (1 - 1e-9):
            out.append(k)
    return out
