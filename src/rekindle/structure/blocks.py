"""The forward of a step cut into blocks where little passes, each of them a step of its own.

Blocks are the stages of a chain, but they need not end in splitting vertices: whatever passes is the input of the next
block. So a value that all layers read (rotary tables, masks), or a skip over half of the network, is no obstacle; it
counts for as long as it is there. Blocks that are the same but for the names of their modules share one canonical form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from ..kernels import blocks as kernel
from ..kernels import modes
from ..kernels.arrays import Arrays
from ..kernels.order import hoist
from ..kernels.runs import prune
from ..model.graph import BOUNDARY, Graph, Op, Value
from .chain import Chain
from .saved import Dropping

DROPS = 8  # numbers of values dropped in a block that are tried: of all, and of those that cost; twice over


def costly(chain: Chain, weights: np.ndarray, levels: int) -> list[np.ndarray]:
    """Sets of values, each bool [values], that are dear to make again for the bytes they take: at most `levels`, from
    those that cost anything at all to fewer and fewer."""
    lives, a = chain.lives, chain.graph.arrays
    able = (lives.made >= 0) & (lives.made < chain.turn) & (lives.size > 0)
    ids = np.flatnonzero(able)
    density = weights[a.producer[ids]] / lives.size[ids]
    ids, density = ids[density > 0], density[density > 0]
    order = np.lexsort((-ids, -density))
    ids = ids[order]
    total = np.cumsum(lives.size[ids])
    found = []
    for part in np.linspace(1, 0, levels + 1)[:-1]:
        mask = np.zeros(len(able), np.bool_)
        mask[ids[: int(np.searchsorted(total, part * total[-1], side="right")) if len(ids) else 0]] = True
        found.append(mask)
    return list({mask.tobytes(): mask for mask in found if mask.any()}.values())


class Kinds:
    """What a block is told apart by: ops without the paths of their modules.

    of : int64 [ops]; equal where two ops differ in no more than that and in what they read and make.
    """

    def __init__(self, graph: Graph, weights: np.ndarray):
        found: dict[object, int] = {}
        self.weights = weights
        self.place = np.full(len(graph.values), -1, np.int64)
        self.of = np.array([
            found.setdefault((o.signature or o.name, o.workspace, o.recompute, w), len(found))
            for o, w in zip(graph.ops, weights.tolist(), strict=True)
        ], np.int64)  # fmt: skip


class Block:
    """A stage of a chain, with ids of its own for its ops and for the values that they touch.

    ops : int64; the graph's id of each; forward first, then -1 where the rest of the step runs, then backward.
    turn : where that is.
    key : the same for two blocks that differ in names only.
    around, before : bytes that pass while it runs backward, and forward, without being touched; not in any size here.
    """

    def __init__(self, chain: Chain, stage: int, kinds: Kinds):
        self.chain, self.stage, self.kinds = chain, stage, kinds
        a = chain.graph.arrays
        forward, backward = chain.forward[stage], chain.backward[stage]
        self.turn = len(forward)
        self.ops = np.array([*forward, -1, *backward], np.int64)
        ops = np.delete(self.ops, self.turn)
        self.values, wiring = kernel.localise(
            ops, a.in_ptr, a.in_ids, a.out_ptr, a.out_ids, a.inplace_ptr, a.inplace_ids, kinds.place
        )  # fmt: skip
        lives, n = chain.lives, len(chain)
        made, last, group, used, size, self.kept = lives.of(self.values)
        read, entering = used < n, (made < stage) & (made >= 0) & (last >= stage)
        self.size = size
        self.own, own_gradient = made == stage, group == stage
        self.later = (made > stage) | (group > stage)
        self.passed_on = self.own & (last > stage)
        self.unread = entering & ~read
        self.passing = self.unread & (last > stage)
        self.ending = entering & (used == stage)
        self.waiting = self.later & (used <= stage)
        self.left = (self.own | own_gradient | self.later) & (used < stage)
        self.saved = self.passed_on & read  # whatever the option
        self.behind = self.waiting | own_gradient
        outside = np.ones(len(lives.size), np.bool_)
        outside[self.values] = False
        passes = outside & ((lives.made > stage) | (lives.group > stage)) & (lives.used < stage)
        idle = outside & (lives.made >= 0) & (lives.made < stage) & (lives.last > stage) & (lives.used >= n)
        self.around, self.before = int(lives.size[passes].sum()), int(lives.size[idle].sum())
        flags = [self.own, read, entering, self.later, self.passed_on, self.passing, self.ending, self.waiting, self.left,
                 own_gradient, self.kept]  # fmt: skip
        parts = (wiring, kinds.of[ops], size, np.array(flags))
        self.key = (self.turn, *(part.tobytes() for part in parts))

    @cached_property
    def graph(self) -> Graph:
        """A step of the block alone: forward, `boundary` in the place of the rest of the step, backward."""
        at = {v: i for i, v in enumerate(self.values.tolist())}
        results, arriving = np.flatnonzero(self.passed_on).tolist(), np.flatnonzero(self.later).tolist()
        last = len(at)  # a token: the boundary has run
        ops = []
        for o in self.ops.tolist():
            if o < 0:
                ops.append(Op(BOUNDARY, tuple(results), (*arriving, last), recompute=False))
                continue
            op = self.chain.graph.ops[o]
            inputs, outputs, over = (tuple(at[v] for v in ids) for ids in (op.inputs, op.outputs, op.inplace))
            ops.append(replace(op, inputs=inputs, outputs=outputs, inplace=over))
        keep = np.flatnonzero(self.left | self.saved | self.own & self.kept).tolist()
        values = [*(Value(x) for x in self.size.tolist()), Value(0)]
        return Graph(tuple(values), tuple(ops), (*keep, last), 0, "block")

    @cached_property
    def weights(self) -> np.ndarray:
        """float64 [ops]: what a run of each costs."""
        return np.where(self.ops >= 0, self.kinds.weights[self.ops], 0.0)

    @property
    def plain(self) -> np.ndarray:
        """Backward as it stands."""
        return np.arange(self.turn + 1, len(self.ops))

    def quick(self, program: np.ndarray) -> tuple[float, float, float]:
        """(bytes held for the backward `program`, its peak, what it costs with the forward that saves for it)."""
        saved, extra, _ = self._needs(program)
        return (
            float(self.size[saved].sum()), float(self._backward_peak(program, extra)), float(self.weights[program].sum())
        )  # fmt: skip

    def sizes(self, program: np.ndarray) -> tuple[float, ...]:
        """What the backward `program` takes, as `kernels.rotor.Stages` has it: saved, save_peak, save_time, alone_peak,
        alone_time, backward_peak, backward_time."""
        saved, extra, needs = self._needs(program)
        save, alone = self._forward(self.passed_on | self.own & needs), self._forward(self.own & needs)
        again = np.where(self._arrays.recompute, self.weights, 0.0)
        here = self.own | self.unread
        together = np.concatenate([alone, program])
        return (
            float(self.size[saved].sum()),
            float(self._peak(save, here, self.passed_on | saved | self.passing)),
            float(again[save].sum()),
            float(self._peak(together, here | self.ending | self.behind, self.left) - self._ends),
            float(again[alone].sum()),
            float(self._backward_peak(program, extra)),
            float(self.weights[program].sum()),
        )  # fmt: skip

    def _needs(self, program: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """bool [values]: what is held from forward to `program`, what of it is input that no plain backward reads, and
        all that must be there before it."""
        a = self._arrays
        needs = np.append(self.left & self.own, False)
        kernel.missing(program, needs, a.in_ptr, a.in_ids, a.out_ptr, a.out_ids)
        needs = needs[:-1]
        extra = self.unread & needs
        return self.own & needs | self.saved | extra, extra, needs

    def _backward_peak(self, program: np.ndarray, extra: np.ndarray) -> int:
        return self._peak(program, self.own | extra | self.ending | self.behind, self.left) - self._ends

    @cached_property
    def _ends(self) -> int:
        return int(self.size[self.ending].sum())

    @cached_property
    def _arrays(self) -> Arrays:
        a = self.graph.arrays
        return a._replace(bytes=np.append(self.size, 0), producer=np.zeros(len(a.bytes), np.int64))

    def _forward(self, wanted: np.ndarray) -> np.ndarray:
        """The runs of forward that make the values `wanted`, where what is kept is there."""
        a = self._arrays
        every = np.ones(len(a.recompute), np.bool_)
        runs = np.array([i for i in range(self.turn) if int(self.ops[i]) not in self.chain.once], np.int64)
        producer = np.append(np.where(self.kept, -1, 0), 0)
        wanted = np.append(wanted & ~self.kept, False)
        return prune(runs, producer, a.in_ptr, a.in_ids, a.out_ptr, a.out_ids, every, wanted)

    def _peak(self, runs: np.ndarray, counted: np.ndarray, left: np.ndarray) -> int:
        """Most bytes of the values `counted` during the runs, where those of `left` must be there after them."""
        size = np.append(np.where(counted, self.size, 0), 0)
        arrays = self._arrays._replace(bytes=size, keep=np.append(left, False))
        top, _ = modes.peak(runs, len(runs), np.inf, np.empty(len(size), np.bool_), *arrays, self._shared)
        return max(int(top), int(size[:-1][left].sum()))

    @cached_property
    def _shared(self) -> np.ndarray:
        """bool [values]: what the boundary of the whole step reads or makes."""
        out = np.zeros(len(self.size) + 1, np.bool_)
        graph = self.chain.graph
        if graph.boundary is not None:
            boundary = graph.ops[graph.boundary]
            out[:-1] = np.isin(self.values, [*boundary.inputs, *boundary.outputs])
        return out


def programs(block: Block) -> list[np.ndarray]:
    """What may run as the backward of a block, recomputations included; the plain one first.

    Values are dropped in order of what a byte of them costs to make again. What is dropped is made again once and held to
    its last use; or at each use; or what is cheapest at each use and the rest once. Backward runs as it stands, or every
    op that lets go of more than it makes as soon as it can.
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
            for modes_ in _modes(dropping, ranked, density):
                if (found_runs := dropping.runs(modes_)) is None:
                    continue  # far more runs than ops: none is worth its time
                runs = np.array(found_runs, np.int64)
                program = runs[int(np.flatnonzero(runs == block.turn)[0]) + 1 :]
                found.setdefault(program.tobytes(), program)
    return list(found.values())


def _modes(dropping: Dropping, ranked: np.ndarray, density: np.ndarray) -> Iterator[np.ndarray]:
    yield dropping.all(modes.KEEP)
    n = len(ranked)
    if not n:
        return
    steps = np.append(np.flatnonzero(np.diff(density) > 1e-9 * density[1:]) + 1, n)
    free = int(np.searchsorted(density, 0.0, "right"))  # these cost nothing to make again
    even = np.concatenate([np.linspace(1, n, DROPS), np.linspace(free, n, DROPS + 1)[1:]]).astype(np.int64)
    counts = np.unique(np.concatenate([steps[:: -(-len(steps) // DROPS)], even[even > 0]]))
    for count in counts.tolist():
        styles = {
            modes.HOLD: 0,
            modes.TRANSIENT: count,
            -1: min(count, int(np.searchsorted(density, density[0], "right"))),
        }
        for cheap in sorted({*styles.values()}):
            row = dropping.all(modes.KEEP)
            row[ranked[:count]] = modes.HOLD
            row[ranked[:cheap]] = modes.TRANSIENT
            yield row


def _hoisted(dropping: Dropping) -> np.ndarray:
    graph = dropping.graph
    a, end = graph.arrays, dropping.end_of_forward or 0
    rows = [sorted({int(p) for p in a.producer[list(op.inputs)] if p >= 0}) for op in graph.ops]
    ptr = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(r) for r in rows], out=ptr[1:])
    ids = np.array([p for r in rows for p in r], np.int64)
    return hoist(dropping.order, end, ptr, ids, a.bytes, a.producer, a.in_ptr, a.in_ids, a.out_ptr, a.out_ids, a.keep)
