"""Blocks are planned one by one, each in several ways; dynamic programming over the chain of blocks joins them.

The scheme of Rockmate (Zhao, Le Hellard, Eyraud-Dubois, Gusak, Beaumont, ICML 2023, arXiv:2307.01236): options for each
block, joined by the dynamic programming of rotor (arXiv:1911.13214). New here: levels of values that forward saves.

Problem: the whole step, as a chain of blocks. The forward is cut where few bytes pass; long skips and values that every
layer reads pass through all blocks in between. Where the forward is no chain (U-Nets, branches) it is also divided at its
splitting vertices alone: all that lies within a skip is then one block. Each block has a set of options: which of its
values are held from its forward to its backward, and which ops run as its backward, recomputations inside, weight
gradients early. They come from freeing values in order of their cost per byte to recompute and, within skips, from this
same scheme inside the block, skip within skip, with more or less memory left to the rest of the step. Equal blocks are
planned once.

The join is rotor's: each block runs in one of its options, or saves only its input, or nothing, and runs forward again
later. Beyond that, a stretch of blocks may go to a deeper *level*: as forward passes, it leaves behind the values that are
dear to recompute for their bytes (the outputs of convolutions, say), and from then on passing there again costs little.
Levels are nested, and a stretch within a stretch may go further.

Optimality: of the join, for its objective: among persistent schedules of the blocks in the given options and levels, up to
memory slots. The objective takes a pass to a deeper level for one that forgets all its blocks: for blocks that the same
pass keeps it counts too much. None is claimed for the cuts, the options and the sets that levels keep.

Complexity: O(L S n^2 (n + K)) for n blocks, K options, S memory slots, L levels, and as much again for each size of
blocks; a few ms for each block that is like no other. n is about 60 at most: longer networks have larger blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy

import numpy as np

from ..kernels.rotor import Stages
from ..model.graph import Graph
from ..model.schedule import Schedule
from ..problem import Problem, choose, register
from ..solvers.rotor import SLOTS, Curve, entries, thin
from ..structure.archive import Entry, pareto, prune
from ..structure.blocks import Block
from ..structure.chain import BACKWARD, Chain, chain_at, with_kept
from ..structure.cuts import closed, cuts
from ..structure.forward import Forward, forward_dag
from .block_options import MOST_OPTIONS, KnownBlocks, options, pad

# How a graph is cut, and how its blocks are joined. All are guesses; none was measured alone.
BLOCK_OPS = (5, 10, 24)  # ops of weight in a block, at least; each number makes a curve of its own
INNER_BLOCK_OPS = 5  # the same in a block of a block
DIVIDED_MOST_OPS = 200  # of weight, in a block that is divided in turn
LEAST_SLOTS = 300  # of memory in any case; a long chain has fewer than a short one:
SLOTS_TIMES_BLOCKS = 40  # so many, in multiples of rotor's slots, have all blocks together
WAIT_SHARES = (0.0, 0.5, 1.0)  # of a block's bytes: what the rest of the step takes beside it, when it is divided
LEVELS, INNER_LEVELS = 6, 2  # sets of values that forward saves, one within the other, of a step and inside a block


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
    for curve in curves(problem.graph, problem.weights, forward, BLOCK_OPS):
        found += entries(problem, curve)
        if problem.time_left <= 0:
            break
    chosen = thin(choose(problem, pareto(found)))
    yield from (Schedule.from_runs(problem.graph, e.runs, "hierarchical") for e in chosen)


def curves(graph: Graph, weights: np.ndarray, forward: Forward, block_ops: Sequence[int]) -> Iterator[Levels]:
    """The graph as chains of blocks of each size and, where it is no chain, of closed sets."""
    known = KnownBlocks(graph, weights)
    for splits in dict.fromkeys(tuple(cuts(graph, forward, size)) for size in block_ops):
        yield Levels(graph, weights, forward, [*splits], known)
    if apart := closed(graph, forward, INNER_BLOCK_OPS, DIVIDED_MOST_OPS):
        yield Levels(graph, weights, forward, apart, KnownBlocks(graph, weights, nested))


class Levels(Curve):
    """The curve of a chain of blocks, in all levels of values that forward saves.

    levels, enter : as `kernels.rotor` takes them.
    programs : per level, block and option the ops that run as backward.
    again : per level and block the ops that run as forward.
    """

    def __init__(
        self, graph: Graph, weights: np.ndarray, forward: Forward, splits: list[int], known: KnownBlocks | None = None,
        levels: int = LEVELS,
    ):  # fmt: skip
        """splits : vertices after which the forward is cut. known : options of blocks, shared by the curves of one graph.
        levels : beside the one on which nothing is saved."""
        plain = chain_at(graph, forward, splits)
        super().__init__(plain, weights)
        chains = [plain, *with_kept(plain, reversed(costly(plain, weights, levels)))]
        known = known or KnownBlocks(graph, weights)
        found = [options(c, known) for c in chains]
        self.programs = [programs for _, programs in found]
        self.levels = _stacked([stages for stages, _ in found])
        self.enter = np.zeros((len(chains), len(chains), len(plain) + 1))
        skip = [c.times(weights).skip for c in chains]
        for here, c in enumerate(chains):
            for there in range(here + 1, len(chains)):
                more = np.maximum(0.0, c.leaving(chains[there], weights) - skip[there])
                self.enter[here, there, 1:] = np.cumsum(more)
        self.again = [[np.array([o for o in ops if o not in c.once], np.int64) for ops in c.forward] for c in chains]
        self.slots = max(LEAST_SLOTS, min(SLOTS, SLOTS_TIMES_BLOCKS * SLOTS // len(plain)))

    def beside(self, wait: int) -> Levels:
        """The curve where the rest of a larger step takes `wait` bytes at the turn."""
        other = copy(self)
        alone_peak = self.levels.alone_peak.copy()
        alone_peak[:, -1] += wait
        other.levels = self.levels._replace(alone_peak=alone_peak)
        other.whole += wait
        return other

    def runs(self, slots: int) -> list[list[int]]:
        """Sequences of runs of least time in so many slots."""
        rows = self.rows(slots)
        found = [self._runs(rows, reuse) for reuse in (False, True)]
        return found if found[0] != found[1] else found[:1]

    def _runs(self, rows: list[list[int]], reuse: bool) -> list[int]:
        """As `Chain.runs`."""
        n = len(self.chain)
        parts, behind, at_hand = [], n, [0] * n
        for kind, stage, option, level in rows:
            if kind == BACKWARD:
                parts.append(self.programs[level][stage][option])
                behind = stage
                continue
            ops = self.again[at_hand[stage]][stage]
            at_hand[stage] = max(at_hand[stage], level)
            parts.append(ops[self.chain.reach[ops] < behind] if reuse and behind < n else ops)
        return prune(self.chain.graph, np.concatenate(parts))


def _stacked(stages: list[Stages]) -> Stages:
    """The stages of all levels with one more axis, the first; each with as many options as the level with most."""
    most = max(s.saved.shape[1] for s in stages)
    by_option = ("saved", "save_peak", "save_time", "alone_peak", "alone_time", "backward_peak", "backward_time")
    padded = [s._replace(**{name: pad(getattr(s, name), most) for name in by_option}) for s in stages]
    return Stages(*(np.ascontiguousarray(np.stack(rows)) for rows in zip(*padded, strict=True)))


def nested(block: Block, smallest: int = INNER_BLOCK_OPS) -> Iterator[np.ndarray]:
    """Backward programs of a block that is divided in turn, as the inside of a skip is: its own step, planned as a whole
    step is, beside a rest of the step that takes nothing, half or all of the bytes that the block takes.

    smallest : ops of weight in a block of the block, at least.
    """
    if block.kept.any() or block.stage == block.chain.turn or (forward := forward_dag(block.graph)) is None:
        return
    if (splits := divided(block.graph, forward, smallest)) is None:
        return
    known = KnownBlocks(block.graph, block.weights, nested)
    whole = Levels(block.graph, block.weights, forward, splits, known, INNER_LEVELS)
    for share in WAIT_SHARES:
        curve = whole.beside(int(share * whole.whole))
        curve.aim(curve.whole)
        choices = curve.choices
        most = min(MOST_OPTIONS, len(choices))
        for k in np.unique(np.linspace(0, len(choices) - 1, most).astype(np.int64)).tolist():
            for runs in curve.runs(choices[k]):
                yield np.array(runs[runs.index(block.turn) + 1 :], np.int64)


def divided(graph: Graph, forward: Forward, smallest: int) -> list[int] | None:
    """Vertices after which the step of a block is cut, None where it is small."""
    apart = closed(graph, forward, smallest, DIVIDED_MOST_OPS) or cuts(graph, forward, smallest)
    return apart if len(apart) > 3 else None


def costly(chain: Chain, weights: np.ndarray, levels: int) -> list[np.ndarray]:
    """Sets of values, each bool [values], that are dear to recompute for the bytes they take: at most `levels` sets, the
    first with all values that cost anything, each further one a part of the one before."""
    lives, a = chain.lives, chain.graph.arrays
    movable = (lives.made >= 0) & (lives.made < chain.turn) & (lives.size > 0)
    ids = np.flatnonzero(movable)
    density = weights[a.producer[ids]] / lives.size[ids]
    ids, density = ids[density > 0], density[density > 0]
    order = np.lexsort((-ids, -density))
    ids = ids[order]
    total = np.cumsum(lives.size[ids])
    found = []
    for share in np.linspace(1, 0, levels + 1)[:-1]:
        mask = np.zeros(len(movable), np.bool_)
        mask[ids[: int(np.searchsorted(total, share * total[-1], side="right")) if len(ids) else 0]] = True
        found.append(mask)
    return list({mask.tobytes(): mask for mask in found if mask.any()}.values())
