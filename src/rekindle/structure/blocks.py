"""The forward of a step cut into blocks where little passes, each of them a step of its own.

Blocks are the stages of a chain, but they need not end in splitting vertices: whatever passes is the input of the next
block. So a value that all layers read (rotary tables, masks), or a skip over half of the network, is no obstacle; it
counts for as long as it is there. Blocks that are the same but for the names of their modules share one canonical form.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ..graph import BOUNDARY, Graph, Op, Value
from ..kernels import blocks as kernel
from ..kernels import modes
from ..kernels.runs import prune
from .chain import Chain, chain_at
from .forward import Forward, forward_dag, results

SMALLEST = 5
SPREAD = 3
MOST = 100  # times the smallest block is the whole forward at most
NEGLIGIBLE = 0.01  # the least outputs that together hold at most this part of all that forward makes have no weight


def blocks_of(graph: Graph, smallest: int = SMALLEST) -> Chain | None:
    """The chain of blocks, or None where nothing marks the end of forward or no op leads to a result."""
    forward = forward_dag(graph)
    if forward is None:
        return None
    return chain_at(graph, forward, cuts(graph, forward, smallest))


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


def cuts(graph: Graph, forward: Forward, smallest: int) -> list[int]:
    """Vertices after which the forward is cut, the source and the target among them, such that least bytes pass all
    cuts together and each block has between `smallest` and SPREAD times as many ops of weight, where that is possible."""
    target = len(forward.ops) - 1
    passing, weight = _passing(graph, forward)
    smallest = max(smallest, int(weight[-1]) // MOST)
    # Of the places between two ops of weight only the best: levels[k] for those with k such ops before them.
    order = np.lexsort((-np.arange(target + 1), passing))
    levels, first = np.unique(weight[order], return_index=True)
    places, costs = order[first], passing[order[first]]
    inner = (places > 0) & (places < target) & (levels > 0) & (levels < weight[-1])
    levels = np.concatenate([[0], levels[inner], [weight[-1]]])
    places = np.concatenate([[0], places[inner], [target]])
    costs = np.concatenate([[0.0], costs[inner], [0.0]])
    best, before = np.full(len(levels), np.inf), np.zeros(len(levels), np.int64)
    best[0] = 0.0
    for k in range(1, len(levels)):
        low = int(np.searchsorted(levels, levels[k] - SPREAD * smallest))
        high = int(np.searchsorted(levels, levels[k] - smallest, side="right"))
        low, high = (
            (min(low, k - 1), max(high, min(low, k - 1) + 1)) if k < len(levels) - 1 or high <= low else (low, high)
        )
        length = levels[k] - levels[low:high]
        total = best[low:high] + costs[k] * length * (1 + 0.01 * length / smallest)
        at = low + int(total.argmin())
        best[k], before[k] = total[at - low], at
    found, k = [], len(levels) - 1
    while k:
        found.append(int(places[k]))
        k = int(before[k])
    return [0, *reversed(found)]


def _passing(graph: Graph, forward: Forward) -> tuple[np.ndarray, np.ndarray]:
    """Per vertex the bytes that pass behind it (a little more where backward does not read them), and the number of
    ops of weight up to it."""
    n = len(forward.ops)
    vertex = {o: v for v, o in enumerate(forward.ops) if o >= 0}
    handed_on = set(results(graph))
    passing, made = np.zeros(n + 1), np.zeros(n)
    for o, at in vertex.items():
        for v in graph.ops[o].outputs:
            readers = [vertex[c] for c in graph.consumers[v] if c in vertex]
            last = n if v in handed_on else max(readers, default=at)
            read = any(graph.ops[c].backward or c > forward.ops[-1] >= 0 for c in graph.consumers[v])
            size = graph.arrays.bytes[v] * (1.0 if read else 1.001)
            passing[at] += size
            passing[last] -= size
            made[at] += graph.arrays.bytes[v]
    ranked = np.argsort(made, kind="stable")
    total = np.cumsum(made[ranked])
    weighs = np.zeros(n, np.bool_)
    weighs[ranked[total > NEGLIGIBLE * total[-1]]] = True
    return np.cumsum(passing)[:n], np.cumsum(weighs)


class Block:
    """A stage of a chain, with ids of its own for its ops and for the values that they touch.

    ops, values : the graph's id of each; forward first, then -1 for the place where the rest of the step runs, then
        backward.
    around, before : bytes that pass while it runs backward, and forward, without being touched.
    """

    def __init__(self, chain: Chain, stage: int, weights: np.ndarray):
        self.chain, self.stage = chain, stage
        forward, backward = chain.forward[stage], chain.backward[stage]
        self.ops = [*forward, -1, *backward]
        self.turn = len(forward)
        graph = chain.graph
        touched: dict[int, None] = {}
        for o in (*forward, *backward):
            touched.update(dict.fromkeys((*graph.ops[o].inputs, *graph.ops[o].outputs)))
        self.values = np.array(list(touched), np.int64)
        at = {v: i for i, v in enumerate(touched)}
        lives = chain.lives
        made, last, group, used, size, kept = (x[self.values] for x in lives)
        self.kept = kept.astype(np.bool_)
        read = used < len(chain)
        self.size = size
        self.own, own_gradient = made == stage, group == stage
        later = (made > stage) | (group > stage)
        entering = (made < stage) & (made >= 0) & (last >= stage)
        self.passed_on = self.own & (last > stage)
        self.unread = entering & ~read
        self.on = self.unread & (last > stage)
        self.ending = entering & (used == stage)
        self.waiting = later & (used <= stage)
        self.left = (self.own | own_gradient | later) & (used < stage)
        self.saved = self.passed_on & read  # whatever the option
        self.behind = self.waiting | own_gradient
        self.ends = int(size[self.ending].sum())
        every = lives.size
        outside = np.ones(len(every), np.bool_)
        outside[self.values] = False
        passes = ((lives.made > stage) | (lives.group > stage)) & (lives.used < stage)
        self.around = int(every[outside & passes].sum())
        idle = (lives.made < stage) & (lives.made >= 0) & (lives.last > stage) & (lives.used >= len(chain))
        self.before = int(every[outside & idle].sum())
        self.weights = np.array([0.0 if o < 0 else weights[o] for o in self.ops])
        ops = [self._op(graph.ops[o], at) for o in forward]
        results = tuple(np.flatnonzero(self.passed_on).tolist())
        arriving = np.flatnonzero(later).tolist()
        ops.append(Op(BOUNDARY, results, (*arriving, len(at)), recompute=False))
        ops += [self._op(graph.ops[o], at) for o in backward]
        keep = np.flatnonzero(self.left | self.saved | self.own & self.kept).tolist()
        self.form = (
            tuple(int(x) for x in size), tuple(ops), tuple(self.weights.tolist()),
            np.packbits([self.own, read, later, entering, self.passed_on, self.on, self.ending, self.waiting, self.left,
                         own_gradient, self.kept]).tobytes(),
        )  # fmt: skip
        self._parts = (tuple(ops), tuple(keep))

    def _op(self, op: Op, at: dict[int, int]) -> Op:
        """The op with ids of the block, without the path of its module."""
        inputs, outputs, over = (tuple(at[v] for v in ids) for ids in (op.inputs, op.outputs, op.inplace))
        return replace(op, name=op.name.split("|", 1)[-1], inputs=inputs, outputs=outputs, inplace=over)

    def graph(self, workspace: int = 0) -> Graph:
        """A step of the block alone: forward, `boundary` for the rest of the step, backward.

        workspace : bytes that the rest of the step takes.
        """
        ops, keep = self._parts
        values = [*(Value(int(x)) for x in self.size), Value(0)]
        rest = replace(ops[self.turn], workspace=workspace)
        return Graph(
            tuple(values), (*ops[: self.turn], rest, *ops[self.turn + 1 :]), (*keep, len(self.size)), 0, "block"
        )

    @cached_property
    def _arrays(self) -> Any:
        a = self.graph().arrays
        return a._replace(bytes=np.append(self.size, 0), producer=np.zeros(len(a.bytes), np.int64))

    @property
    def plain(self) -> np.ndarray:
        """Backward as it stands."""
        return np.arange(self.turn + 1, len(self.ops))

    def sizes(self, program: np.ndarray) -> tuple[float, ...]:
        """What the backward `program` takes, as `kernels.rotor.Stages` has it: saved, save_peak, save_time, alone_peak,
        alone_time, backward_peak, backward_time; what passes untouched is left out."""
        a = self._arrays
        needs = np.append(self.left & self.own, False)
        kernel.missing(program, needs, a.in_ptr, a.in_ids, a.out_ptr, a.out_ids)
        needs, left = needs[:-1], self.left
        extra = self.unread & needs
        saved = self.own & needs | self.saved | extra
        save, alone = self._forward(self.passed_on | self.own & needs), self._forward(self.own & needs)
        again = np.where(a.recompute, self.weights, 0.0)
        return (
            int(self.size[saved].sum()),
            self._peak(save, self.own | self.unread, self.passed_on | saved | self.on, self.own | self.unread),
            float(again[save].sum()),
            self._peak(np.concatenate([alone, program]), self.own | self.unread | self.ending | self.behind, left,
                       self.unread | self.waiting) - self.ends,
            float(again[alone].sum()),
            self._peak(program, self.own | extra | self.ending | self.behind, left, self.waiting) - self.ends,
            float(self.weights[program].sum()),
        )  # fmt: skip

    def _forward(self, wanted: np.ndarray) -> np.ndarray:
        """The runs of forward that make the values `wanted`."""
        a = self._arrays
        every = np.ones(len(a.recompute), np.bool_)
        runs = np.array([i for i in range(self.turn) if self.ops[i] not in self.chain.once], np.int64)
        producer = np.append(np.where(self.kept, -1, 0), 0)
        return prune(
            runs, producer, a.in_ptr, a.in_ids, a.out_ptr, a.out_ids, every, np.append(wanted & ~self.kept, False)
        )  # fmt: skip

    def _peak(self, runs: np.ndarray, counted: np.ndarray, left: np.ndarray, writable: np.ndarray) -> int:
        a = self._arrays
        size = np.append(np.where(counted, self.size, 0), 0)
        top, _ = modes.peak(
            runs, len(runs), np.empty(len(size), np.bool_), np.append(writable, False).astype(np.int8),
            np.empty(len(runs), np.int64), *a._replace(bytes=size, keep=np.append(left, False)), self._shared,
        )  # fmt: skip
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
