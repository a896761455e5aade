"""Blocks of a step: the stages of a chain, each looked at as a small step of its own.

Blocks need not end in splitting vertices: every value that passes is an input of the next block. So a value that all
layers read (rotary tables, masks), or a skip over half of the network, is no obstacle; it counts for as long as it is
there. Blocks that differ only in the names of their modules have the same key.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..kernels import blocks, modes
from ..kernels.arrays import Arrays, Rows
from ..kernels.liveness import prune
from ..model.graph import BOUNDARY, Graph, Op, Value
from .chain import Chain


class Kinds:
    """The kind of every op, without the path of its module, so that equal blocks can be recognised.

    of : int64 [ops]; equal where two ops differ only in the path of their module and in which values they read and make.
    weights : float64 [ops]; cost of a run.
    place : int64 [values], all -1; scratch of `blocks.localise`.
    """

    def __init__(self, graph: Graph, weights: np.ndarray):
        found: dict[object, int] = {}
        self.weights = weights
        self.place = np.full(len(graph.values), -1, np.int64)
        self.of = np.array([
            found.setdefault((o.signature or o.name, o.workspace, o.recompute, w), len(found))
            for o, w in zip(graph.ops, weights.tolist(), strict=True)
        ], np.int64)  # fmt: skip


# The columns of `Block.sizes`.
SIZES = ("saved", "save_peak", "save_time", "alone_peak", "alone_time", "backward_peak", "backward_time")


class Block:
    """A stage of a chain, with its own ids for its ops and for the values that they touch.

    ops : int64; the graph's id of each op: forward, then -1 where the rest of the step runs, then backward.
    turn : the position of the -1.
    key : equal for two blocks that differ in names only.
    around, before : bytes that pass while the block runs backward, and forward, without being touched; in no size here.
    values : int64; the graph's id of each value. size : int64; its bytes.
    role : what its values are to it. kept : bool [values]; stays until the backward of its stage whatever the plan is.
    """

    def __init__(self, chain: Chain, stage: int, kinds: Kinds):
        self.chain, self.stage, self.kinds = chain, stage, kinds
        a = chain.graph.arrays
        forward, backward = chain.forward[stage], chain.backward[stage]
        self.turn = len(forward)
        self.ops = np.array([*forward, -1, *backward], np.int64)
        ops = np.delete(self.ops, self.turn)
        self.values, wiring = blocks.localise(ops, a, kinds.place)
        lives = chain.lives
        self.size, self.kept = lives.size[self.values], lives.kept[self.values]
        self.role = lives.roles(self.values, stage)
        outside = np.ones(len(lives.size), np.bool_)
        outside[self.values] = False
        passes = outside & ((lives.made > stage) | (lives.group > stage)) & (lives.used < stage)
        idle = outside & (lives.made >= 0) & (lives.made < stage) & (lives.last > stage) & (lives.used >= len(chain))
        self.around, self.before = int(lives.size[passes].sum()), int(lives.size[idle].sum())
        self._wiring = wiring
        parts = (wiring, kinds.of[ops], self.size, self.kept, *self.role)
        self.key = (self.turn, *(part.tobytes() for part in parts))

    @cached_property
    def graph(self) -> Graph:
        """A step of the block alone: forward, a boundary op in place of the rest of the step, backward."""
        at = {v: i for i, v in enumerate(self.values.tolist())}
        results, arriving = np.flatnonzero(self.role.passed_on).tolist(), np.flatnonzero(self.role.later).tolist()
        last = len(at)  # a token: the boundary has run
        ops = []
        for o in self.ops.tolist():
            if o < 0:
                ops.append(Op(BOUNDARY, tuple(results), (*arriving, last), recompute=False))
                continue
            op = self.chain.graph.ops[o]
            inputs, outputs, over = (tuple(at[v] for v in ids) for ids in (op.inputs, op.outputs, op.inplace))
            # `dataclasses.replace` takes four times as long, and a plan makes thousands of ops.
            ops.append(
                Op(op.name, inputs, outputs, op.seconds, op.flops, op.workspace, op.backward, op.recompute, over)
            )
        keep = np.flatnonzero(self._stays).tolist()
        values = [*(Value(x) for x in self.size.tolist()), Value(0)]
        return Graph(tuple(values), tuple(ops), (*keep, last), 0, "block")

    @property
    def _stays(self) -> np.ndarray:
        """bool [values]: whether it must be there after the step of the block."""
        return self.role.left | self.role.saved | self.role.own & self.kept

    @cached_property
    def arrays(self) -> Arrays:
        """The arrays of `graph`, without the graph."""
        a, turn, count = self.chain.graph.arrays, self.turn, len(self.ops)
        ops = np.delete(self.ops, turn)
        token = len(self.size)
        results, arriving = np.flatnonzero(self.role.passed_on), np.append(np.flatnonzero(self.role.later), token)
        ptr, ids = blocks.rows(self._wiring, count - 1)
        inputs, outputs, over = (
            _with_row(ptr[kind], ids[kind], turn, row) for kind, row in enumerate((results, arriving, results[:0]))
        )
        producer = np.full(token + 1, -1, np.int64)
        producer[outputs.ids] = np.repeat(np.arange(count), np.diff(outputs.ptr))
        return Arrays(
            np.where(producer >= 0, _with_last(self.size, 0), 0), producer, *inputs, *outputs, *over,
            np.insert(a.workspace[ops], turn, 0), np.insert(a.recompute[ops], turn, False), _with_last(self._stays, True),
            turn,
        )  # fmt: skip

    @cached_property
    def weights(self) -> np.ndarray:
        """float64 [ops]: the cost of a run of each op."""
        return np.where(self.ops >= 0, self.kinds.weights[self.ops], 0.0)

    @property
    def plain(self) -> np.ndarray:
        """Backward in the order of the graph, without recomputation."""
        return np.arange(self.turn + 1, len(self.ops))

    def quick(self, program: np.ndarray) -> tuple[float, float, float]:
        """(bytes held for the backward `program`, its peak, its cost), to choose among programs."""
        saved, extra, _ = self._needs(program)
        return (
            float(self.size[saved].sum()), float(self._backward_peak(program, extra)), float(self.weights[program].sum())
        )  # fmt: skip

    def prices(self, order: np.ndarray, rows: np.ndarray, drops: Rows, scratch: modes.Scratch) -> np.ndarray:
        """float64 [rows, 3]: as `quick`, of the programs that follow from rows of modes; see `kernels.blocks.price`."""
        prices: np.ndarray = blocks.price(
            order, rows, drops, self.arrays, self._bare, self._marks, self.weights, self.turn, scratch
        )
        prices[:, 1] -= self._ends
        return prices

    @cached_property
    def _bare(self) -> Arrays:
        a = self._arrays
        return a._replace(bytes=a.bytes.copy(), keep=_with_last(self.role.left, False))

    @cached_property
    def _marks(self) -> blocks.Marks:
        r = self.role
        counted = r.own | r.ending | r.behind
        own, saved, unread, counted, left = (_with_last(x, False) for x in (r.own, r.saved, r.unread, counted, r.left))
        return blocks.Marks(own, saved, unread, counted, left, self._shared)

    def sizes(self, program: np.ndarray) -> tuple[float, ...]:
        """The sizes and times of the backward `program` in the order of `SIZES`, as `kernels.rotor.Stages` has them."""
        saved, extra, needs = self._needs(program)
        r = self.role
        save, alone = self._forward(r.passed_on | r.own & needs), self._forward(r.own & needs)
        again = np.where(self._arrays.recompute, self.weights, 0.0)
        here = r.own | r.unread
        together = np.concatenate([alone, program])
        return (
            float(self.size[saved].sum()),
            float(self._peak(save, here, r.passed_on | saved | r.passing)),
            float(again[save].sum()),
            float(self._peak(together, here | r.ending | r.behind, r.left) - self._ends),
            float(again[alone].sum()),
            float(self._backward_peak(program, extra)),
            float(self.weights[program].sum()),
        )  # fmt: skip

    def _needs(self, program: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Three bool [values]: held from forward to `program`; the inputs among them that no plain backward reads; and all
        values that must be there before it."""
        a = self._arrays
        needs = _with_last(self.role.left & self.role.own, False)
        blocks.missing(program, needs, a)
        needs = needs[:-1]
        extra = self.role.unread & needs
        return self.role.own & needs | self.role.saved | extra, extra, needs

    def _backward_peak(self, program: np.ndarray, extra: np.ndarray) -> int:
        r = self.role
        return self._peak(program, r.own | extra | r.ending | r.behind, r.left) - self._ends

    @cached_property
    def _ends(self) -> int:
        return int(self.size[self.role.ending].sum())

    @cached_property
    def _arrays(self) -> Arrays:
        a = self.arrays
        return a._replace(bytes=_with_last(self.size, 0), producer=np.zeros(len(a.bytes), np.int64))

    def _forward(self, wanted: np.ndarray) -> np.ndarray:
        """The runs of forward that make the values `wanted`, where the kept values are there."""
        runs, asked = self._forward_arrays
        return prune(runs, asked._replace(keep=_with_last(wanted & ~self.kept, False)))

    @cached_property
    def _forward_arrays(self) -> tuple[np.ndarray, Arrays]:
        a, once = self._arrays, self.chain.once
        runs = np.array([i for i, o in enumerate(self.ops[: self.turn].tolist()) if o not in once], np.int64)
        producer = _with_last(np.where(self.kept, -1, 0), 0)
        return runs, a._replace(producer=producer, recompute=np.ones(len(a.recompute), np.bool_))

    def _peak(self, runs: np.ndarray, counted: np.ndarray, left: np.ndarray) -> int:
        """Most bytes of the values `counted` during the runs, where the values `left` must be there after them."""
        size = _with_last(np.where(counted, self.size, 0), 0)
        arrays = self._arrays._replace(bytes=size, keep=_with_last(left, False))
        top, _ = modes.peak(runs, len(runs), np.inf, np.empty(len(size), np.bool_), arrays, self._shared)
        return max(int(top), int(size[:-1][left].sum()))

    @cached_property
    def _shared(self) -> np.ndarray:
        """bool [values]: values that the boundary of the whole step reads or makes."""
        out = np.zeros(len(self.size) + 1, np.bool_)
        graph = self.chain.graph
        if graph.boundary is not None:
            boundary = graph.ops[graph.boundary]
            out[:-1] = np.isin(self.values, [*boundary.inputs, *boundary.outputs])
        return out


def _with_row(ptr: np.ndarray, ids: np.ndarray, at: int, row: np.ndarray) -> Rows:
    """Compressed rows with one more row at position `at`."""
    begin, end = ptr[at], ptr[-1]
    longer = np.concatenate([ptr[: at + 1], ptr[at:] + len(row)])
    return Rows(longer, np.concatenate([ids[:begin], row, ids[begin:end]]))


def _with_last(x: np.ndarray, last: int | bool) -> np.ndarray:
    """One more element at the end; `np.append` takes three times as long."""
    out = np.empty(len(x) + 1, x.dtype)
    out[:-1] = x
    out[-1] = last
    return out
