"""A graph cut down to the values that weigh and the ops that make or read them, so that a search scores plans fast.

Values that together hold next to nothing are always kept, so nothing ever waits for them to be recomputed; the caller's
inputs are always at hand. Neither has to be looked at when a plan is scored.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from ..kernels import order as kernel
from ..kernels.arrays import Arrays, Rows, compressed_rows
from ..kernels.order import Regions
from ..model.graph import Graph
from .archive import Entry, entry, pareto
from .saved import Dropping

SECONDS_SHARE = 1e-3  # of the cost that a search sees, added in proportion to seconds
COUNT_SHARE = 1e-5  # of that cost, added evenly over all ops
NEGLIGIBLE_SHARE = 0.001  # of the bytes that all ops make: smaller values are left out; a guess


class Reduced:
    """The reduced problem, with ids of its own: ops are numbered in the order in which they run.

    arrays : `Graph.arrays` of the reduced problem.
    ops, values : int64; the graph's id of each op and value.
    candidates : int64; values whose mode may change, in order of production.
    drops : as `Dropping.drops`.
    shared : bool [values]; as `Graph.shared`.
    before : per op the ops that must run before it for the first time, also by way of ops left out.
    regions : the positions within which ops may change places.
    """

    def __init__(self, graph: Graph, negligible_share: float = NEGLIGIBLE_SHARE):
        """negligible_share : of the bytes that all ops make; the smallest values that together hold at most that are left
        out."""
        a, dropping = graph.arrays, Dropping(graph)
        needed = np.zeros(len(graph.ops), np.bool_)
        needed[dropping.order] = True
        made = (a.producer >= 0) & needed[a.producer]
        weighs = made & ~_negligible(a.bytes, made, negligible_share)
        new_value = np.full(len(graph.values), -1, np.int64)
        self.values = np.flatnonzero(weighs)
        new_value[self.values] = np.arange(len(self.values))
        inputs = [[int(new_value[v]) for v in dict.fromkeys(o.inputs) if new_value[v] >= 0] for o in graph.ops]
        outputs = [[int(new_value[v]) for v in o.outputs if new_value[v] >= 0] for o in graph.ops]
        self.ops = np.array([o for o in dropping.order if outputs[o] or o == a.boundary or inputs[o]], np.int64)
        new_op = np.full(len(graph.ops), -1, np.int64)
        new_op[self.ops] = np.arange(len(self.ops))
        # An op may write over an input only if its first output is looked at.
        over = [
            [int(new_value[v]) for v in op.inplace if new_value[v] >= 0 and new_value[op.outputs[0]] >= 0]
            for op in (graph.ops[o] for o in self.ops)
        ]
        rows_in = compressed_rows(inputs[o] for o in self.ops)
        rows_out = compressed_rows(outputs[o] for o in self.ops)
        self.arrays = Arrays(
            a.bytes[self.values], new_op[a.producer[self.values]], *rows_in, *rows_out, *compressed_rows(over),
            a.workspace[self.ops], a.recompute[self.ops], a.keep[self.values],
            int(new_op[a.boundary]) if a.boundary >= 0 else -1,
        )  # fmt: skip
        self.shared = graph.shared[self.values]
        self.candidates = self._in_order(new_value[dropping.candidates])
        # A value is freed before the first op of the reduced problem at or after its place.
        left = np.flatnonzero(np.isin(dropping.order, self.ops))
        at = np.full(len(self.values), -1, np.int64)
        at[self.candidates] = np.searchsorted(left, dropping.drop_at[self.values[self.candidates]])
        ids = self.candidates[np.argsort(at[self.candidates], kind="stable")]
        self.drops = Rows(np.searchsorted(at[ids], np.arange(len(self.ops) + 1)).astype(np.int64), ids)
        self._graph, self._order = graph, dropping.order.tolist()
        self.before = compressed_rows(self._before(new_op.tolist()))
        self.regions = self._regions()
        whole = dropping.end_of_forward
        self._end = whole if whole is not None and self.regions.second_begin else 0

    def _before(self, new_op: list[int]) -> list[list[int]]:
        """Per op of the reduced problem, the nearest ones that must run before it."""
        reach: dict[int, list[int]] = {}  # of a left-out op: the nearest ops of the reduced problem before it
        made_by = self._graph.arrays.producer.tolist()
        rows = []
        for o in self._order:
            found: dict[int, None] = {}
            for v in self._graph.ops[o].inputs:
                p = made_by[v]
                if p >= 0:
                    found.update(dict.fromkeys(reach[p] if new_op[p] < 0 else (new_op[p],)))
            if new_op[o] < 0:
                reach[o] = list(found)
            else:
                rows.append(sorted(found))
        return rows

    def _regions(self) -> Regions:
        start = np.flatnonzero(np.diff(self.drops.ptr))
        if len(start) != 1:
            return Regions(0, 0)
        drop = int(start[0])
        return Regions(drop - 1 if self.arrays.boundary == drop - 1 else drop, drop)

    @property
    def first_drop(self) -> int:
        """Position before which values are freed for the first time: where forward ends, if anything marks that."""
        return int(np.searchsorted(self.drops.ptr, 1)) - 1

    def whole_runs(self, runs: np.ndarray) -> np.ndarray:
        """int64: runs of the graph for runs of the reduced problem. Each left-out op runs once, as soon as its inputs are
        made, on its own side of the end of forward."""
        waits, after = self._left_out
        out = np.empty(len(runs) + len(waits), np.int64)
        m = kernel.whole(runs, self.ops, self.regions.second_begin, self.arrays.boundary, waits.copy(), after, out)
        return out[:m]

    def whole_entries(self, weights: np.ndarray, entries: list[Entry]) -> list[Entry]:
        """Entries of the reduced problem as entries of the whole graph, with their true peaks and costs. Dominated entries are
        left out, the plain step is added. weights : float64 [ops of the graph], the cost of each op."""
        plain = np.flatnonzero(self._graph.needed)
        whole = [plain, *(self.whole_runs(e.runs) for e in entries)]
        return pareto([entry(self._graph, weights, runs) for runs in whole])

    def search_weights(self, weights: np.ndarray) -> np.ndarray:
        """float64 [ops of the reduced problem]: the cost of each op, with a trace of its seconds and of the number of ops, so
        that ops that cost nothing are not run in vain. weights : as for `whole_entries`."""
        w = weights.astype(np.float64)[self.ops]
        total = float(w.sum()) or 1.0
        seconds = self._graph.weights("seconds")[self.ops]
        s = float(seconds.sum())
        trace = SECONDS_SHARE * total / s * seconds if s > 0 else 0.0
        return w + trace + COUNT_SHARE * total / max(1, len(self.ops))

    def reduced_runs(self, runs: Iterable[int]) -> np.ndarray:
        """int64: the runs of the reduced problem among `runs` of the graph (op ids), with its ids."""
        new = np.full(len(self._graph.ops), -1, np.int64)
        new[self.ops] = np.arange(len(self.ops))
        found = new[np.fromiter(runs, np.int64)]
        return found[found >= 0]

    @cached_property
    def _left_out(self) -> tuple[np.ndarray, Rows]:
        """(waits, after) of the ops that are left out, as `kernels.order.whole` takes them."""
        g = self._graph
        n = len(g.ops)
        waits = np.full(n, -1, np.int64)
        after: list[list[int]] = [[] for _ in range(n + 1)]
        left = set(self.ops.tolist())
        made_by = g.arrays.producer.tolist()
        for i, o in enumerate(self._order):
            if o in left:
                continue
            needs = {made_by[v] for v in g.ops[o].inputs if made_by[v] >= 0}
            if i >= self._end:
                needs.add(n)
            waits[o] = len(needs)
            for p in needs:
                after[p].append(o)
        return waits, compressed_rows(after)

    def _in_order(self, values: np.ndarray) -> np.ndarray:
        values = values[values >= 0]
        return values[np.argsort(self.arrays.producer[values], kind="stable")].astype(np.int64)

    @property
    def largest_input(self) -> int:
        """The most bytes that one op reads."""
        a = self.arrays
        read = (a.bytes[a.in_ids[a.in_ptr[o] : a.in_ptr[o + 1]]].sum() for o in range(len(self.ops)))
        return int(max(read, default=0))

    @property
    def work(self) -> int:
        """Elementary steps to score a plan that recomputes nothing."""
        return len(self.ops) + len(self.values) + 2 * (len(self.arrays.in_ids) + len(self.arrays.out_ids))


def _negligible(size: np.ndarray, made: np.ndarray, share: float) -> np.ndarray:
    """bool [values]: the smallest of the values `made` that together hold at most that share of all their bytes."""
    out = np.zeros(len(size), np.bool_)
    ids = np.flatnonzero(made)
    ids = ids[np.argsort(size[ids], kind="stable")]
    total = np.cumsum(size[ids])
    out[ids[total <= share * (total[-1] if len(total) else 0)]] = True
    return out
