"""The needed sets of a step: read backwards, a schedule is a walk over sets of values that the rest of the step needs.

Read any schedule from its end. R is the set of values that the future needs, at first what must be kept. Before the
last useful run of op q, R has lost q's outputs and gained its inputs; while q ran, R and q's inputs and outputs were
live. Useless runs never help, so the sequences of such steps from the kept values to the empty set are all schedules
worth having. An op whose outputs the set can never call for again is undone for the last time: its first run. An op
that may run only once may be undone then and at no other time, so R is all the state there is.
"""

from __future__ import annotations

import numpy as np

from ..kernels import needed as kernel
from ..kernels.arrays import compressed_rows
from ..model.graph import Graph
from ..model.schedule import Free, Run, Schedule, Step

WORDS = 2
MOST = 64 * WORDS  # ops, and values, that fit in the masks


class Needed:
    """Masks and sizes of the needed ops (in baseline order) and of the values that they make and something reads.

    drop : the least values that together hold at most this share of all bytes count as nothing, so that the model is a
        lower bound.
    safe : writes over nothing that the caller may hold; else wherever the judge allows it.

    Attributes
    ----------
    ops, values : graph ids. size, cost, again : size of a value; cost of a run, and whether the op may run again.
    unit : sizes are in multiples of that many bytes.
    reads, makes, heavy, below : uint64 [ops, WORDS]; the values that an op reads, that it makes, that it makes and that
        take memory, and that it or an op after it makes.
    start : uint64 [WORDS]; the values to keep.
    other : what an op needs beside those values: workspace, and outputs that no op reads.
    over_ptr, over_ids : inputs over which the op may write its first output, of size `first`.
    """

    def __init__(self, graph: Graph, weights: np.ndarray, safe: bool = False, drop: float = 0.0):
        a = graph.arrays
        self.graph = graph
        self.ops = [int(i) for i in np.flatnonzero(graph.needed)]
        read = {v for i in self.ops for v in graph.ops[i].inputs} | set(graph.keep)
        self.values = [v for v in sorted(read) if a.producer[v] >= 0]
        bit = {v: j for j, v in enumerate(self.values)}
        self.size = a.bytes[self.values].copy()
        self.cost = weights[self.ops].astype(np.float64)
        self.again = a.recompute[self.ops]
        inputs = [[bit[v] for v in dict.fromkeys(graph.ops[i].inputs) if v in bit] for i in self.ops]
        outputs = [[bit[v] for v in graph.ops[i].outputs if v in bit] for i in self.ops]
        firsts = [graph.ops[i].outputs[0] if graph.ops[i].outputs else -1 for i in self.ops]
        first_bit = np.array([bit.get(v, -1) for v in firsts], np.int64)
        unread = [sum(int(a.bytes[v]) for v in graph.ops[i].outputs if v not in bit) for i in self.ops]
        beside = a.workspace[self.ops] + np.array(unread, np.int64)
        without = beside - np.array([int(a.bytes[v]) if v >= 0 and v not in bit else 0 for v in firsts], np.int64)
        self.unit = self._simplify(drop, beside, without)
        self.other = beside // self.unit
        self.first = self.other - without // self.unit
        self.first[first_bit >= 0] = self.size[first_bit[first_bit >= 0]]
        over = [[bit[v] for v in overwritable(graph, i, safe) if v in bit] for i in self.ops]
        self.in_ptr, self.in_ids = compressed_rows(inputs)
        self.out_ptr, self.out_ids = compressed_rows(outputs)
        self.over_ptr, self.over_ids = compressed_rows(over)
        self.reads, self.makes = masks(inputs), masks(outputs)
        self.heavy = masks([[j for j in row if self.size[j]] for row in outputs])
        self.start = masks([[bit[v] for v in graph.keep if v in bit]])[0]
        self.before, self.after = self._order(inputs)
        self.below = masks([[u for p in _ones(row) for u in outputs[p]] for row in self.after])

    def _simplify(self, drop: float, beside: np.ndarray, without: np.ndarray) -> int:
        """Sets the least values to 0 bytes and gives the unit of bytes in which the model counts, which divides every size
        that is left. With `drop`, bytes beside the values are rounded down to it."""
        order = np.argsort(self.size, kind="stable")
        total = np.cumsum(self.size[order])
        if drop:
            self.size[order[total <= drop * (total[-1] if len(total) else 0)]] = 0
        exact = [] if drop else [beside, without]
        unit = max(1, int(np.gcd.reduce(np.concatenate([self.size, *exact]), initial=0)))
        self.size //= unit
        return unit

    def _order(self, inputs: list[list[int]]) -> tuple[list[int], list[int]]:
        """Per op a bit set, as an int, of the ops that always run before its first run, and of those after it; the op
        itself is in both."""
        position = {i: k for k, i in enumerate(self.ops)}
        made_by = [position[int(self.graph.arrays.producer[v])] for v in self.values]
        before = [1 << k for k in range(len(self.ops))]
        after = before.copy()
        for k, row in enumerate(inputs):
            for v in row:
                before[k] |= before[made_by[v]]
        for k in range(len(self.ops)):
            for p in _ones(before[k]):
                after[p] |= 1 << k
        self.made_by = np.array(made_by, np.int64)
        return before, after

    @property
    def arrays(self) -> kernel.Model:
        """The model as the search kernel takes it."""
        return kernel.Model(*(getattr(self, field) for field in kernel.Model._fields))

    def held(self, needed: np.ndarray) -> int:
        """The size of a set of values."""
        return sum(int(s) for j, s in enumerate(self.size) if int(needed[j >> 6]) >> (j & 63) & 1)

    def own(self, k: int) -> int:
        """Bytes without which op k cannot run, in units."""
        held = int(self.size[self.in_ids[self.in_ptr[k] : self.in_ptr[k + 1]]].sum()) + int(self.other[k])
        held += int(self.size[self.out_ids[self.out_ptr[k] : self.out_ptr[k + 1]]].sum())
        return held - (int(self.first[k]) if self.over_ptr[k + 1] > self.over_ptr[k] else 0)

    def schedule(self, runs: list[int], solver: str) -> Schedule:
        """The steps of runs (ops by position) each of which is useful; writes in place wherever the masks allow."""
        graph, bit = self.graph, {v: j for j, v in enumerate(self.values)}
        live_after: list[set[int]] = []
        needed = set(graph.keep) & set(bit)
        for k in reversed(runs):
            live_after.append(set(needed))
            op = graph.ops[self.ops[k]]
            needed = (needed - set(op.outputs)) | {v for v in op.inputs if v in bit}
        steps: list[Step] = []
        for k, after in zip(runs, reversed(live_after), strict=True):
            op = graph.ops[self.ops[k]]
            over = [self.values[j] for j in self.over_ids[self.over_ptr[k] : self.over_ptr[k + 1]]]
            into = next((v for v in over if v not in after), None)
            steps.append(Run(self.ops[k], into))
            there = dict.fromkeys((*op.outputs, *(v for v in op.inputs if v in bit)))
            steps += [Free(v) for v in there if v not in after and v != into]
        return Schedule(tuple(steps), graph.hash, solver)


def overwritable(graph: Graph, i: int, safe: bool) -> list[int]:
    """The inputs over which op i may write its first output."""
    a, op = graph.arrays, graph.ops[i]
    found = [v for v in op.inplace if a.producer[v] >= 0 and a.bytes[v] >= a.bytes[op.outputs[0]]]
    return [v for v in found if not (safe and graph.shared[v])]


def masks(lists: list[list[int]]) -> np.ndarray:
    """uint64 [lists, WORDS]: sets of values as bits."""
    out = np.zeros((len(lists), WORDS), np.uint64)
    for i, row in enumerate(lists):
        for j in row:
            out[i, j >> 6] |= np.uint64(1 << (j & 63))
    return out


def _ones(bits: int) -> list[int]:
    """The places of the ones of an int."""
    out = []
    while bits:
        out.append((bits & -bits).bit_length() - 1)
        bits &= bits - 1
    return out
