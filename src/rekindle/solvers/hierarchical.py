"""Blocks are planned one by one, each in several ways; dynamic programming over the chain of blocks joins them.

The scheme of Rockmate (Zhao, Le Hellard, Eyraud-Dubois, Gusak, Beaumont, ICML 2023, arXiv:2307.01236) and HiRemate
(ICML 2025): options for each block, joined by the dynamic programming of rotor (arXiv:1911.13214).

Problem: the whole step, as a chain of blocks. The forward is cut where little passes; long skips and values that every
layer reads pass through all blocks in between. For each block a set of options: which of its values are kept from its
forward to its backward, and what runs as its backward, with recomputations inside and the ops in an order that lets go of
memory early. They come from dropping values in order of what a byte costs to make again, and from annealing over modes
and order (as in `storages`) on the block alone, with less and more memory taken by the rest of the step. Blocks that are
the same are planned once. Then a table as in `rotor`: for each block to run one of its options, or to keep its input
only, or nothing, and to run it forward again later.

Optimality: of the join, for its objective: among persistent schedules of the blocks in the given options, up to memory
slots. None is claimed for the cuts and the options.

Complexity: O(u k) for k proposals on each of u different blocks, and O(S n^2 (n + K)) for the join of n blocks with K
options in S slots. n is about 50 at most: longer networks have larger blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..kernels import levels as level_kernel
from ..kernels import rotor as kernel
from ..kernels.modes import HOLD, TRANSIENT
from ..kernels.order import hoist
from ..schedule import Schedule
from ..structure.archive import Entry, pareto
from ..structure.blocks import Block, costly, cuts
from ..structure.chain import BACKWARD, Chain, chain_at
from ..structure.forward import Forward, forward_dag
from ..structure.reduced import Reduced
from ..structure.runs import prune
from ..structure.saved import Dropping
from .base import Problem
from .choice import choose
from .registry import register
from .rotor import SLOTS, Curve, entries
from .storages import Search

OPTIONS = 16  # of a block
PEERS = (1, 3, 10, 40)  # how many blocks like it stand behind one, for which options are chosen
REST = (0.0, 0.6)  # memory that the rest of a step takes while a block is planned, in parts of what the block takes
PREFIXES = 16  # sets of cheap values to drop
WORK = 6e7  # elementary steps of all searches together
LEVELS = 8
SIZES = (5, 24)
GOALS = 6  # peaks aimed at in one search


@register(
    "hierarchical",
    graphs="any",
    objective="least time within a memory, of a chain of blocks with several options each",
    optimal="the join: among persistent schedules of the options, up to memory slots",
    complexity="O(u k + S n^2 (n + K)): k proposals on u different blocks; n blocks, K options, S memory slots",
    citation="after Zhao, Le Hellard, Eyraud-Dubois, Gusak, Beaumont, Rockmate, ICML 2023, arXiv:2307.01236",
)
def hierarchical(problem: Problem) -> Iterator[Schedule]:
    """Options for each different block, joined over all blocks by dynamic programming; takes a budget or an overhead."""
    forward = forward_dag(problem.graph)
    if forward is None:
        yield Schedule.baseline(problem.graph, "hierarchical")
        return
    found: list[Entry] = []
    for size in SIZES:
        found += entries(problem, Levels(problem, forward, size))
    yield from (Schedule.from_runs(problem.graph, e.runs, "hierarchical") for e in choose(problem, pareto(found)))


class Levels(Curve):
    """The curve of a chain of blocks, in all levels of what forward keeps.

    chains : per level the chain of blocks. programs : per level, block and option what runs as backward.
    """

    def __init__(self, problem: Problem, forward: Forward, size: int):
        graph, weights = problem.graph, problem.weights
        at = cuts(graph, forward, size)
        plain = chain_at(graph, forward, at)
        self.chains = [plain]
        self.chains += [chain_at(graph, forward, at, kept) for kept in reversed(costly(plain, weights, LEVELS))]
        found = [options(problem, c, level == 0) for level, c in enumerate(self.chains)]
        self.programs = [programs for _, programs in found]
        most = max(stages.saved.shape[1] for stages, _ in found)
        padded = [[pad(x, most) if x.ndim == 2 and k >= 4 else x for k, x in enumerate(stages)] for stages, _ in found]
        self.levels = kernel.Stages(*(np.ascontiguousarray(np.stack(rows)) for rows in zip(*padded, strict=True)))
        save = np.array([c.times(weights).save for c in self.chains])
        more = np.maximum(0.0, save - np.roll(save, -1, 0))
        self.enter = np.zeros((len(save), len(plain) + 1))
        self.enter[1:, 1:] = np.cumsum(more[:-1], 1)
        again = [[np.array([o for o in ops if o not in c.once], np.int64) for ops in c.forward] for c in self.chains]
        self.again = again
        super().__init__(plain, weights)
        self.aim(self.whole + plain.held)

    def solve(self) -> np.ndarray:
        self.tables = level_kernel.solve(self.levels, self.enter, self.unit, SLOTS)
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
    fill = np.inf if x.dtype.kind == "f" else 0
    return np.concatenate([x, np.full((len(x), most - x.shape[1]), fill, x.dtype)], 1)


@dataclass(frozen=True)
class Planned:
    """The options of a block: sizes float64 [options, 7] as `Block.sizes`, and the backward programs."""

    sizes: np.ndarray
    programs: list[np.ndarray]


def options(problem: Problem, chain: Chain, thorough: bool) -> tuple[kernel.Stages, list[list[np.ndarray]]]:
    """Options for every block; what is the same is planned once."""
    blocks = [Block(chain, stage, problem.weights) for stage in range(len(chain))]
    different: dict[object, Block] = {}
    for block in blocks:
        different.setdefault(block.form, block)
    share = 1.0 / max(1, len(different))
    planned = {form: plan(problem, block, share, thorough) for form, block in different.items()}
    problem.progress(f"{len(blocks)} blocks, {len(different)} different")
    n, most = len(blocks), max(len(p.programs) for p in planned.values())
    table = np.zeros((7, n, most))
    table[[2, 4, 6]] = np.inf  # times of options that there are not
    programs = []
    for stage, block in enumerate(blocks):
        found = planned[block.form]
        table[:, stage, : len(found.programs)] = found.sizes.T
        table[1, stage] += block.before
        table[[3, 5], stage] += block.around
        ids = np.array(block.ops, np.int64)
        programs.append([ids[p] for p in found.programs])
    saved, save_peak, alone_peak, backward_peak = (
        np.ascontiguousarray(table[row]).astype(np.int64) for row in (0, 1, 3, 5)
    )  # fmt: skip
    save_time, alone_time, backward_time = (np.ascontiguousarray(table[row]) for row in (2, 4, 6))
    keeping = np.append(0, np.cumsum(chain.keeping))
    own = chain.keeping[:, None]
    stages = kernel.Stages(
        chain.hold + np.maximum(0, keeping[:-1][None, :] - keeping[:-1][:, None]),
        chain.passing + np.maximum(0, keeping[1:][None, :] - keeping[:-1][:, None]),
        chain.gradient, chain.times(problem.weights).skip, saved + own, save_peak + own, save_time, alone_peak + own,
        alone_time, backward_peak + own, backward_time,
    )  # fmt: skip
    return stages, programs


def plan(problem: Problem, block: Block, share: float, thorough: bool) -> Planned:
    """The options of a block; share is the part of the work that goes into them."""
    programs = {block.plain.tobytes(): block.plain}
    if len(block.plain):
        for rest in REST if thorough else REST[:1]:
            for program in Search_(problem, block, rest, share / len(REST)).programs(thorough):
                programs.setdefault(program.tobytes(), program)
    found = list(programs.values())
    sizes = np.array([block.sizes(p) for p in found], np.float64)
    kept = best_of(sizes)
    return Planned(sizes[kept], [found[k] for k in kept])


def best_of(sizes: np.ndarray) -> list[int]:
    """Rows of `Block.sizes` that are best where few or many like it stand behind one, the first always among them."""
    saved, peak, alone = sizes[:, 0], np.maximum(sizes[:, 1], sizes[:, 5]), sizes[:, 3]
    time, alone_time = sizes[:, 2] + sizes[:, 6], sizes[:, 4] + sizes[:, 6]
    measures = [(alone, alone_time), (saved, time), *((n * saved + peak, time) for n in PEERS)]
    kept = {0: None}
    each = max(2, OPTIONS // len(measures))
    for measure, cost in measures:
        front = undominated(measure, cost)
        ranks = np.unique(np.linspace(0, len(front) - 1, each).round().astype(np.int64))
        kept.update(dict.fromkeys(front[r] for r in ranks))
    return list(kept)


def undominated(measure: np.ndarray, cost: np.ndarray) -> list[int]:
    """Indices that no other matches in both, by rising measure."""
    out: list[int] = []
    for k in np.lexsort((cost, measure)).tolist():
        if not out or cost[k] < cost[out[-1]] * (1 - 1e-9):
            out.append(k)
    return out


class Search_(Search):
    """The search of `storages` on a block, cut short."""

    def __init__(self, problem: Problem, block: Block, rest: float, share: float):
        self.block, self.share = block, share
        graph = block.graph()
        if rest:
            graph = block.graph(int(rest * block.size.sum()))
        weights = block.weights
        inner = Problem(graph, weights, None, None, problem.seed, problem.deadline, effort=problem.effort)
        super().__init__(inner, Reduced(graph, Dropping(graph)))

    def programs(self, thorough: bool) -> Iterator[np.ndarray]:
        r = self.reduced
        if not len(r.candidates):
            return
        for point in [*self.seeds(), *self._prefixes()]:
            self.record(point)
        for number, heat in enumerate((0.01, 0.003) if thorough else ()):
            if self.problem.time_left > 0:
                proposals = WORK * self.share * self.problem.effort / r.work / 2
                goals = [self._goal(a) for a in self._anchors()[:: 12 // GOALS]]
                self._chains(goals, proposals, heat, number)
        for e in self.entries():
            runs = r.whole_runs(e.runs)
            at = int(np.flatnonzero(runs == self.block.turn)[0])
            yield runs[at + 1 :]

    def _prefixes(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Values dropped in order of what a byte of them costs to make again."""
        r = self.reduced
        a = r.arrays
        density = self.weights[a.producer[r.candidates]] / np.maximum(1, a.bytes[r.candidates])
        ranked = r.candidates[np.argsort(density, kind="stable")]
        orders = [self.order]
        if r.regions[1]:
            orders.append(
                hoist(
                    self.order,
                    r.regions[1],
                    r.before_ptr,
                    r.before_ids,
                    a.bytes,
                    a.producer,
                    a.in_ptr,
                    a.in_ids,
                    a.out_ptr,
                    a.out_ids,
                    a.keep,
                )  # fmt: skip
            )
        for count in np.unique(np.linspace(1, len(ranked), PREFIXES).astype(np.int64)):
            for mode in (HOLD, TRANSIENT):
                modes = self._all(2)
                modes[ranked[:count]] = mode
                for order in orders:
                    yield modes, order
