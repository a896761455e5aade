"""Operator-level search: every storage that forward makes is kept, held or transient.

Rekindle. Seeds: the revised chain objective of Hong et al. (JPDC 2025, arXiv:2502.12499); annealing over a schedule as in
FastSA (Imanishi et al., NeurIPS 2023), here over decisions per storage instead of places in a sequence.

Problem: the whole step. For every storage that forward makes one of three modes is chosen: *keep* it for backward; *hold*:
make it again once, when backward first needs it, and hold it to its last use; *transient*: make it again at each need.
The ops that run once each may also change places, on their side of the end of forward. A choice is scored by the exact
peak and cost of the step that follows from it.

How: the order starts from one that lets go of memory early (a weight's gradient before the input's). Seeds come from
cutting the forward by the revised objective, with cheap values transient. Annealing chains aim at a dozen peaks between
the least found and the plain step's, from seeds and from each other's results; a good part of their proposals is aimed at
what waits at the peak. Every point on their way enters an archive by peak, which is the answer: the whole curve from one
search. So a larger budget never gives a slower plan. Deterministic for a seed unless a time limit cuts it short.

Optimality: none claimed; the certified gap tells the distance.

Complexity: O(k n) for k proposals on n ops and edges; k is chosen so that a few seconds pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from ..kernels import cuts
from ..kernels import search as kernel
from ..kernels.modes import HOLD, KEEP, TRANSIENT
from ..kernels.order import hoist
from ..model.schedule import Schedule
from ..problem import Problem, choose, register
from ..structure.archive import Entry, Goal, limit_goal, pareto
from ..structure.reduced import Reduced
from ..structure.saved import Dropping
from .choice import in_threads, over_whole_graph, search_weights

# How much a search may do, counted in elementary steps and not in seconds, so that the same seed gives the same plan.
WORK = 5e8
ANCHORS = 12  # peaks at which chains aim
CLOSER = 6  # the same, for a closer look at a part of the curve
ABOVE = 1.15  # times the peak aimed at: from there every second chain of a closer look comes down, to see other valleys
BINS = 256  # peaks told apart in the archive
# Of each round: the share of the work, the first temperature in units of the plain step's cost.
ROUNDS = ((0.35, 0.012), (0.4, 0.005), (0.25, 0.0015))
SLICES = 8  # parts of a chain, between which it sees that time is up

Point = tuple[np.ndarray, np.ndarray]  # modes, order


@register(
    "storages",
    graphs="any",
    objective="least cost within a peak, or least peak within a cost, of the whole step",
    optimal="",
    complexity="O(k n) for k proposals on n ops and edges",
    citation="this project; seeds of Hong et al. (JPDC 2025, arXiv:2502.12499), annealing after FastSA (NeurIPS 2023)",
    curve=True,
)
def storages(problem: Problem) -> Iterator[Schedule]:
    """Annealing over keep / hold / transient per storage and over the order of ops, in one sweep of the whole curve."""
    search = Search(problem)
    if len(search.reduced.candidates):
        search.run()
    entries = over_whole_graph(problem, search.reduced, search.entries())
    yield from (Schedule.from_runs(problem.graph, e.runs, "storages") for e in choose(problem, entries))


class Search:
    """Seeds and chains on the reduced problem, and the archive of what they meet."""

    def __init__(self, problem: Problem, reduced: Reduced | None = None):
        self.problem, self.graph = problem, problem.graph
        self.reduced = r = reduced or Reduced(self.graph, Dropping(self.graph))
        self.weights = search_weights(problem, r)
        self.base_cost = float(self.weights.sum()) or 1.0
        cap = 12 * len(r.ops) + 200
        self._arguments = (
            r.drop_ptr, r.drop_ids, r.arrays.producer, self.weights, r.shared, self.base_cost, r.before_ptr,
            r.before_ids, r.regions, cap,
        )  # fmt: skip
        self.order = np.arange(len(r.ops), dtype=np.int64)
        self.scratch = kernel.scratch_for(self._arguments, r.arrays)
        self.plain_peak = self.evaluate((self._all(KEEP), self.order))[0]
        self.archive = self._new_archive()

    def _new_archive(self) -> tuple[np.ndarray, ...]:
        r = self.reduced
        a = r.arrays
        low, high = max(1.0, 0.9 * r.largest_input), max(2.0, 1.02 * self.plain_peak)
        edges = np.append(np.geomspace(min(low, high / 2), high, BINS - 1), np.inf)
        return (
            edges, np.full(BINS, np.inf), np.full(BINS, np.inf), np.empty((BINS, len(a.bytes)), np.int8),
            np.empty((BINS, len(r.ops)), np.int64),
        )  # fmt: skip

    @cached_property
    def _classes(self) -> np.ndarray:
        """Per candidate: which kind of op, with which shape, makes it as its which output."""
        r = self.reduced
        keys: dict[Any, int] = {}
        rows = []
        for v in r.candidates:
            op = self.graph.ops[r.ops[r.arrays.producer[v]]]
            kind = op.signature or int(r.arrays.bytes[v])
            rows.append(keys.setdefault((kind, op.outputs.index(int(r.values[v]))), len(keys)))
        return np.array(rows, np.int64)

    def _all(self, mode: int) -> np.ndarray:
        modes = np.full(len(self.reduced.values), KEEP, np.int8)
        modes[self.reduced.candidates] = mode
        return modes

    def evaluate(self, point: Point) -> tuple[float, float]:
        """(peak, extra cost)."""
        top, _, extra, _ = kernel.evaluate(*point, self._arguments, self.reduced.arrays, self.scratch)
        return top, extra

    def record(self, point: Point) -> None:
        """Enter a point into the archive."""
        kernel.record(self.archive, *point, *self.evaluate(point))

    # -- seeds -----------------------------------------------------------------------------------------------------
    def seeds(self) -> Iterator[Point]:
        """Points to start from, between cheap and large and costly and small."""
        r = self.reduced
        orders = [self.order]
        if r.regions[1]:
            a = r.arrays
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
        for order in orders:
            yield self._all(KEEP), order
            for transient in self._cheap_values():
                for mode in (TRANSIENT, HOLD):
                    modes = self._all(KEEP)
                    modes[transient] = mode
                    yield modes, order
                for scale in (0.25, 0.5, 1.0, 2.0, 4.0):
                    yield self._cut(transient, scale), order

    def point_of(self, runs: np.ndarray) -> Point:
        """The modes and the order that come closest to a sequence of runs of the reduced problem."""
        r = self.reduced
        first = np.unique(runs, return_index=True)[1]
        order = runs[np.sort(first)].astype(np.int64)
        if not r.regions[1] or len(order) != len(r.ops):
            order = self.order
        made = r.arrays.producer
        again = np.bincount(runs, minlength=len(r.ops))[made] - 1
        kept = again == 0
        if r.regions[1]:
            # A value that backward reads before its op runs again was kept: only another output of that op was not.
            after = (runs >= r.regions[1]) | (np.append(-1, runs[:-1]) == r.arrays.boundary)
            start = int(after.argmax()) if after.any() else len(runs)
            made_at = np.full(len(r.ops), len(runs), np.int64)
            np.minimum.at(made_at, runs[start:], np.arange(start, len(runs)))
            kept |= self._first_reads(runs, start) < made_at[made]
        modes = self._all(KEEP)
        for mode, which in ((HOLD, ~kept & (again == 1)), (TRANSIENT, ~kept & (again > 1))):
            modes[r.candidates[which[r.candidates]]] = mode
        return modes, order

    def _first_reads(self, runs: np.ndarray, start: int) -> np.ndarray:
        """int64 [values]: position of the first run from `start` on that reads the value; beyond the end: none."""
        a = self.reduced.arrays
        begin, count = a.in_ptr[runs[start:]], np.diff(a.in_ptr)[runs[start:]]
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        found = np.full(len(a.bytes), len(runs) + 1, np.int64)
        at = np.repeat(np.arange(start, len(runs)), count)
        np.minimum.at(found, a.in_ids[np.repeat(begin, count) + within], at)
        return found

    def _cheap_values(self) -> list[np.ndarray]:
        """Sets of values that cost little to make again for the bytes they hold, from none to most."""
        r = self.reduced
        density = self.weights[r.arrays.producer[r.candidates]] / np.maximum(1, r.arrays.bytes[r.candidates])
        sets = [r.candidates[:0]] + [r.candidates[density <= q] for q in np.quantile(density, [0.3, 0.5, 0.7])]
        return list({s.tobytes(): s for s in sets}.values())

    def _cut(self, transient: np.ndarray, scale: float) -> np.ndarray:
        """Modes that keep what crosses the cuts of the revised objective and make the rest again segment by segment.

        scale : weight of a segment's own bytes against what is kept: more means shorter segments.
        """
        r = self.reduced
        size = r.arrays.bytes
        end = int(np.searchsorted(r.drop_ptr, 1)) - 1  # position of the first drop: where forward ends
        end = max(1, min(end, len(r.ops)))
        first = np.minimum(r.arrays.producer[r.candidates], end - 1)
        last = self._last_forward_use[r.candidates]
        is_transient = np.zeros(len(size), np.bool_)
        is_transient[transient] = True
        passing, inside = np.zeros(end + 2), np.zeros(end + 1)
        np.add.at(passing, first + 1, size[r.candidates])
        np.add.at(passing, np.minimum(np.maximum(last, first), end) + 1, -size[r.candidates])
        held = ~is_transient[r.candidates]
        np.add.at(inside, first[held] + 1, size[r.candidates][held])
        cross = np.cumsum(passing)[: end + 1]
        cross[0] = cross[end] = 0.0
        at = cuts.revised(cross, np.cumsum(inside) * scale)
        crosses = np.searchsorted(at, first, side="right") < np.searchsorted(at, last, side="right")
        # Backward begins behind the last cut: nothing is gained by making twice what lies there.
        behind = (first >= at[-1]) & held if len(at) else np.zeros(len(first), np.bool_)
        modes = self._all(HOLD)
        modes[transient] = TRANSIENT
        modes[r.candidates[crosses | behind]] = KEEP
        return modes

    @cached_property
    def _last_forward_use(self) -> np.ndarray:
        """int64 [values]: position of the last op before the first drop that reads the value, -1: none."""
        r = self.reduced
        end = int(np.searchsorted(r.drop_ptr, 1)) - 1
        last = np.full(len(r.values), -1, np.int64)
        for o in range(min(end, len(r.ops))):
            last[r.arrays.in_ids[r.arrays.in_ptr[o] : r.arrays.in_ptr[o + 1]]] = o
        return last

    def copy(self, problem: Problem) -> Search:
        """Another one that starts with the same archive, within the time of `problem`."""
        other = Search.__new__(Search)
        other.__dict__.update(self.__dict__)
        other.problem = problem
        other.archive = tuple(a.copy() for a in self.archive)
        return other

    # -- search ----------------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Fill the archive, over the whole curve."""
        for point in self.seeds():
            self.record(point)
        proposals = self._proposals()
        # First the least peak, so that the others know how far to aim.
        self._chains([self._goal(None)] * 2, proposals * 0.08, 0.02, 0)
        for k, (share, heat) in enumerate(ROUNDS):
            if self.problem.time_left <= 0:
                return
            self._chains([self._goal(a) for a in self._anchors()], proposals * share, heat, k + 1)
            self._report()
        self._descend(self._anchors())

    def look(self, low: float, high: float) -> None:
        """Go on where the peak lies between low and high."""
        anchors = np.geomspace(low, high, CLOSER).tolist()
        for k, (share, heat) in enumerate(ROUNDS[1:]):
            if self.problem.time_left <= 0:
                return
            above = [a * ABOVE if k == 0 and i % 2 == 0 else a for i, a in enumerate(anchors)]
            starts = [self._start(self._goal(a)) for a in above]
            self._chains([self._goal(a) for a in anchors], self._proposals() * share, heat, k + 11, starts)
            self._report()
        self._descend(anchors)

    def _proposals(self) -> float:
        """How many proposals all chains make together."""
        larger = min(1.5, max(1.0, self.reduced.work / 4000))
        steps = WORK * larger * self.problem.effort
        return min(1e4 * len(self.reduced.candidates), steps / self.reduced.work)

    def _anchors(self) -> list[float]:
        """Peaks to aim at, from the least found to near the plain step's."""
        found = self.archive[2][np.isfinite(self.archive[1])]
        least = max(1.0, float(found.min()))
        return np.geomspace(least, max(least, 0.97 * self.plain_peak), ANCHORS).tolist()

    def _goal(self, limit: float | None) -> Goal:
        """Least cost within a peak; or, for None, least peak."""
        p0, c0 = max(1.0, self.plain_peak), self.base_cost
        return (math.inf, math.inf, p0, c0, 1.0, 1e-3) if limit is None else limit_goal(limit, p0, c0)

    def _start(self, goal: Goal) -> Point:
        """The archive's best for a goal."""
        _, extra, peaks, modes, orders = self.archive
        b = min(np.flatnonzero(np.isfinite(extra)), key=lambda b: kernel.score(peaks[b], extra[b], goal))
        return modes[b].copy(), orders[b].copy()

    def _chains(
        self, goals: list[Goal], proposals: float, heat: float, number: int, starts: list[Point] | None = None
    ) -> None:
        """One annealing chain for each goal, from the archive's best for it where `starts` are not given, two at a time.
        What they find is put together afterwards, in order, so that threads change nothing."""
        r = self.reduced
        each = max(64, int(proposals / len(goals) / SLICES))
        classes = self._classes

        def one(i: int, goal: Goal, point: Point) -> tuple[np.ndarray, ...]:
            archive = self._new_archive()
            for k in range(SLICES):
                if self.problem.time_left <= 0:
                    break
                seed = self.problem.seed * 100_003 + number * 1009 + i * 17 + k
                modes, order, _, _ = kernel.anneal(
                    point, r.candidates, classes, self._arguments, r.arrays, goal, archive, each,
                    heat * (1 - k / SLICES) ** 2, seed,
                )  # fmt: skip
                point = modes, order
            return archive

        starts = starts or [self._start(g) for g in goals]
        for archive in in_threads(self.problem, one, list(zip(range(len(goals)), goals, starts, strict=True))):
            self._merge(archive)

    def _merge(self, other: tuple[np.ndarray, ...]) -> None:
        _, extra, peaks, modes, orders = other
        for b in np.flatnonzero(np.isfinite(extra)):
            kernel.record(self.archive, modes[b], orders[b], peaks[b], extra[b])

    def _descend(self, anchors: list[float]) -> None:
        """End with all single changes, where that is a small part of the work."""
        if 4 * len(anchors) * len(self.reduced.candidates) > 0.3 * self._proposals():
            return
        goals = [self._goal(a) for a in anchors]
        r = self.reduced

        def one(goal: Goal, point: Point) -> tuple[np.ndarray, ...]:
            archive = self._new_archive()
            if self.problem.time_left > 0:
                kernel.descend(point, r.candidates, self._arguments, r.arrays, goal, archive, 2)
            return archive

        starts = [self._start(g) for g in goals]
        for archive in in_threads(self.problem, one, list(zip(goals, starts, strict=True))):
            self._merge(archive)

    def _report(self) -> None:
        extra, peaks = self.archive[1], self.archive[2]
        found = np.isfinite(extra)
        half = found & (peaks <= 0.5 * self.plain_peak)
        at_half = f"; half of it at +{extra[half].min() / self.base_cost:.1%}" if half.any() else ""
        self.problem.progress(
            f"plain {self.plain_peak / 2**20:.1f} MiB, least {peaks[found].min() / 2**20:.1f} MiB{at_half}"
        )

    def entries(self) -> list[Entry]:
        """The archive as runs of the reduced problem."""
        _, extra, peaks, modes, orders = self.archive
        found = []
        for b in np.flatnonzero(np.isfinite(extra)):
            m = kernel.evaluate(modes[b], orders[b], self._arguments, self.reduced.arrays, self.scratch)[3]
            found.append(Entry(float(peaks[b]), float(extra[b]), self.scratch[-1][:m].copy()))
        return pareto(found)
