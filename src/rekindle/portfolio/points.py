"""Points of a reduced problem (a mode for each value, and an order of the ops), and an archive of the best ones."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from ..kernels.modes import HOLD, KEEP, TRANSIENT
from ..kernels.objective import Objective, score
from ..kernels.scoring import Instance, Point, evaluate, scratch_for
from ..kernels.search import PointBins, record
from ..problem import Problem
from ..structure.archive import Entry, pareto, peak_edges
from ..structure.reduced import Reduced

MOST_RUNS_PER_OP, MOST_RUNS_MORE = 12, 200  # longest sequence of runs


class Points:
    """The points of a reduced problem, scored as the judge would.

    weights : float64 [ops]; cost of a run as the search sees it. base_cost : their sum.
    instance : the problem as the kernels take it.
    order : the baseline order. plain_peak : bytes where nothing is recomputed.
    """

    def __init__(self, problem: Problem, reduced: Reduced):
        self.graph, self.reduced = problem.graph, reduced
        self.weights = reduced.search_weights(problem.weights)
        self.base_cost = float(self.weights.sum()) or 1.0
        self.instance = Instance(
            graph=reduced.arrays,
            drops=reduced.drops,
            weights=self.weights,
            base_cost=self.base_cost,
            shared=reduced.shared,
            before=reduced.before,
            regions=reduced.regions,
            most_runs=MOST_RUNS_PER_OP * len(reduced.ops) + MOST_RUNS_MORE,
        )
        self.order = np.arange(len(reduced.ops), dtype=np.int64)
        self.scratch = scratch_for(self.instance)
        self.plain_peak = self.evaluate(self.all_in(KEEP))[0]

    def all_in(self, mode: int, order: np.ndarray | None = None) -> Point:
        """The point with every candidate in one mode, in the baseline order where no other is given."""
        modes = np.full(len(self.reduced.values), KEEP, np.int8)
        modes[self.reduced.candidates] = mode
        return Point(modes, self.order if order is None else order)

    def evaluate(self, point: Point) -> tuple[float, float]:
        """(peak in bytes without the resident ones, extra cost)."""
        top, _, extra, _ = evaluate(point, self.instance, self.scratch)
        return top, extra

    def entry(self, point: Point) -> Entry:
        """A point as runs of the reduced problem."""
        top, _, extra, m = evaluate(point, self.instance, self.scratch)
        return Entry(float(top), float(extra), self.scratch.runs[:m].copy())

    @cached_property
    def classes(self) -> np.ndarray:
        """int64 per candidate: equal for values that ops of the same kind and shape make as the same output."""
        r = self.reduced
        keys: dict[Any, int] = {}
        rows = []
        for v in r.candidates:
            op = self.graph.ops[r.ops[r.arrays.producer[v]]]
            kind = op.signature or int(r.arrays.bytes[v])
            rows.append(keys.setdefault((kind, op.outputs.index(int(r.values[v]))), len(keys)))
        return np.array(rows, np.int64)

    def nearest(self, runs: np.ndarray) -> Point:
        """The point that comes closest to a sequence of runs of the reduced problem."""
        r = self.reduced
        begin = r.regions.second_begin
        first = np.unique(runs, return_index=True)[1]
        order = runs[np.sort(first)].astype(np.int64)
        if not begin or len(order) != len(r.ops):
            order = self.order
        made = r.arrays.producer
        again = np.bincount(runs, minlength=len(r.ops))[made] - 1
        kept = again == 0
        if begin:
            # A value that backward reads before its op runs again was kept; only another output of the op was not.
            after = (runs >= begin) | (np.append(-1, runs[:-1]) == r.arrays.boundary)
            start = int(after.argmax()) if after.any() else len(runs)
            made_at = np.full(len(r.ops), len(runs), np.int64)
            np.minimum.at(made_at, runs[start:], np.arange(start, len(runs)))
            kept |= self._first_reads(runs, start) < made_at[made]
        modes = self.all_in(KEEP).modes
        for mode, which in ((HOLD, ~kept & (again == 1)), (TRANSIENT, ~kept & (again > 1))):
            modes[r.candidates[which[r.candidates]]] = mode
        return Point(modes, order)

    def _first_reads(self, runs: np.ndarray, start: int) -> np.ndarray:
        """int64 [values]: position of the first run from `start` on that reads the value; beyond the end: none."""
        a = self.reduced.arrays
        begin, count = a.in_ptr[runs[start:]], np.diff(a.in_ptr)[runs[start:]]
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        found = np.full(len(a.bytes), len(runs) + 1, np.int64)
        at = np.repeat(np.arange(start, len(runs)), count)
        np.minimum.at(found, a.in_ids[np.repeat(begin, count) + within], at)
        return found


class PointArchive:
    """The cheapest point found for each range of peaks.

    bins : `PointBins`, which the kernels fill; see `kernels.search`.
    """

    def __init__(self, points: Points, bins: int):
        """bins : how many ranges of peaks."""
        r = points.reduced
        low, high = max(1.0, 0.9 * r.largest_input), max(2.0, 1.02 * points.plain_peak)
        self.bins = PointBins(
            peak_edges(min(low, high / 2), high, bins), np.full(bins, np.inf), np.full(bins, np.inf),
            np.empty((bins, len(r.values)), np.int8), np.empty((bins, len(r.ops)), np.int64),
        )  # fmt: skip

    def copy(self) -> PointArchive:
        """An archive with the same points."""
        other = PointArchive.__new__(PointArchive)
        other.bins = PointBins(*(a.copy() for a in self.bins))
        return other

    @property
    def found(self) -> list[int]:
        """The bins in which a point was found."""
        return np.flatnonzero(np.isfinite(self.bins.extra)).tolist()

    def point(self, b: int) -> Point:
        """The point in a bin."""
        return Point(self.bins.modes[b], self.bins.orders[b])

    def best(self, objective: Objective) -> Point:
        """A copy of the point with the best score for an objective."""
        b = min(self.found, key=lambda b: score(self.bins.peak[b], self.bins.extra[b], objective))
        return Point(*(a.copy() for a in self.point(b)))

    def record(self, point: Point, top: float, extra: float) -> None:
        """Enter a point with its peak and extra cost, where it is cheaper than the one in the bin of its peak."""
        record(self.bins, point, top, extra)

    def merge(self, other: PointArchive) -> None:
        """Enter all points of another archive."""
        for b in other.found:
            self.record(other.point(b), other.bins.peak[b], other.bins.extra[b])

    def entries(self, points: Points) -> list[Entry]:
        """The points as runs of the reduced problem; dominated ones left out."""
        found = []
        for b in self.found:
            runs = points.entry(self.point(b)).runs
            found.append(Entry(float(self.bins.peak[b]), float(self.bins.extra[b]), runs))
        return pareto(found)
