"""Search over a mode for every value that forward makes: keep it, hold it, or recompute it at each use.

Rekindle. Seeds: the revised chain objective of Hong et al. (JPDC 2025, arXiv:2502.12499); annealing over a schedule as in
FastSA (Imanishi et al., NeurIPS 2023), here over decisions per value instead of places in a sequence.

Problem: the whole step. For every value that forward makes one of three modes is chosen: *keep* it for backward; *hold*:
recompute it once, when backward first needs it, and hold it to its last use; *transient*: recompute it at each use.
The ops that run once each may also change places, on their side of the end of forward. A choice is scored by the exact
peak and cost of the step that follows from it.

How: the order starts from one that frees memory early (a weight's gradient before the input's). Seeds come from cutting
the forward by the revised objective, with cheap values transient. Annealing chains aim at a dozen peaks between the least
found and the plain step's peak, from seeds and from each other's results; a good part of their proposals changes values
that wait at the peak. Every point on their way enters an archive by peak, which is the answer: the whole curve from one
search. So a larger budget never gives a slower plan. Deterministic for a seed unless a time limit cuts it short.

Optimality: none claimed; the certified gap tells the distance.

Complexity: O(k n) for k proposals on n ops and edges; k is chosen so that a few seconds pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy

import numpy as np

from ..kernels import search as kernel
from ..kernels.objective import Objective
from ..kernels.scoring import Point
from ..model.schedule import Schedule
from ..problem import Problem, choose, register
from ..structure.archive import Entry, within_cost, within_peak
from ..structure.reduced import Reduced
from .point_seeds import seeds
from .points import PointArchive, Points
from .running import ANCHORS, BINS, Round, in_threads, slices

# How much `storages` searches. Work is counted in elementary steps and not in seconds, so that the same seed gives the same
# plan. All are guesses; none was measured alone.
WORK_STEPS = 5e8  # elementary steps of all chains together
USUAL_STEPS = 4000  # where scoring a plan takes more steps, chains get more work, in proportion
MOST_MORE_WORK = 1.5  # times `WORK_STEPS`: the most that such graphs get
MOST_PROPOSALS_PER_CANDIDATE = 1e4  # of all chains together
LEAST_PEAK_ROUND = Round(0.08, 0.02)  # comes before the others, to find how low to aim
# Of a sweep; a closer look leaves the first one out.
ROUNDS = (Round(0.35, 0.012), Round(0.4, 0.005), Round(0.25, 0.0015))
DESCENT_PASSES = 2  # over all candidates, at the end
DESCENT_MOST_SHARE = 0.3  # of the work; where the passes would take more, they are left out


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
    if len(search.points.reduced.candidates):
        search.run()
    entries = search.points.reduced.whole_entries(problem.weights, search.entries())
    yield from (Schedule.from_runs(problem.graph, e.runs, "storages") for e in choose(problem, entries))


class Search:
    """Seeds and chains on the reduced problem, and the archive of the points they meet."""

    def __init__(self, problem: Problem, reduced: Reduced | None = None):
        self.problem = problem
        self.points = Points(problem, reduced or Reduced(problem.graph))
        self.archive = PointArchive(self.points, BINS)

    def copy(self, problem: Problem) -> Search:
        """Another search that starts with the same archive, within the time of `problem`."""
        other = copy(self)
        other.problem, other.archive = problem, self.archive.copy()
        return other

    def enter(self, runs: np.ndarray) -> None:
        """Enter the point that comes closest to a sequence of runs of the reduced problem."""
        self.record(self.points.nearest(runs))

    def record(self, point: Point) -> None:
        """Enter a point into the archive."""
        self.archive.record(point, *self.points.evaluate(point))

    def entries(self) -> list[Entry]:
        """The archive as runs of the reduced problem."""
        return self.archive.entries(self.points)

    def run(self) -> None:
        """Fill the archive, over the whole curve."""
        for point in seeds(self.points):
            self.record(point)
        proposals, first = self._proposals(), LEAST_PEAK_ROUND
        # First the least peak, so that the other chains know how far to aim.
        self._chains([self._objective(None)] * 2, proposals * first.work_share, first.heat, 0)
        for k, part in enumerate(ROUNDS):
            if self.problem.time_left <= 0:
                return
            self._chains([self._objective(a) for a in self._anchors()], proposals * part.work_share, part.heat, k + 1)
            self._report()
        self._descend(self._anchors())

    def chains(self, anchors: Sequence[float], proposals: float, heat: float, number: int) -> None:
        """Run one chain for each peak aimed at, from the archive's best for it. proposals : of all chains together."""
        self._chains([self._objective(a) for a in anchors], proposals, heat, number)

    def _proposals(self) -> float:
        """How many proposals all chains make together."""
        reduced = self.points.reduced
        larger = min(MOST_MORE_WORK, max(1.0, reduced.work / USUAL_STEPS))
        steps = WORK_STEPS * larger * self.problem.work
        return min(MOST_PROPOSALS_PER_CANDIDATE * len(reduced.candidates), steps / reduced.work)

    def _anchors(self) -> list[float]:
        """Peaks to aim at, from the least found to near the plain step's."""
        least = max(1.0, float(self.archive.bins.peak[self.archive.found].min()))
        return np.geomspace(least, max(least, 0.97 * self.points.plain_peak), ANCHORS).tolist()

    def _objective(self, limit: float | None) -> Objective:
        """Least cost within a peak; or, for None, least peak."""
        p0, c0 = max(1.0, self.points.plain_peak), self.points.base_cost
        return within_cost(math.inf, p0, c0) if limit is None else within_peak(limit, p0, c0)

    def _chains(self, objectives: list[Objective], proposals: float, heat: float, number: int) -> None:
        """Run one annealing chain for each objective, two at a time, from the archive's best for it.

        Their points are put together afterwards, in order, so that threads change nothing. proposals : of all chains.
        number : gives the chains their own random numbers.
        """
        points, classes, each = self.points, self.points.classes, int(proposals / len(objectives))

        def one(i: int, objective: Objective, point: Point) -> PointArchive:
            archive = PointArchive(points, BINS)
            for k, steps, first_heat in slices(self.problem, each, heat):
                seed = self.problem.seed * 100_003 + number * 1009 + i * 17 + k
                point = kernel.anneal(
                    point, points.reduced.candidates, classes, points.instance,
                    objective, archive.bins, steps, first_heat, seed,
                )  # fmt: skip
            return archive

        chains = [(i, objective, self.archive.best(objective)) for i, objective in enumerate(objectives)]
        for archive in in_threads(self.problem, one, chains):
            self.archive.merge(archive)

    def _descend(self, anchors: list[float]) -> None:
        """End with all single changes, where they are a small part of the work."""
        points = self.points
        candidates = points.reduced.candidates
        if 2 * DESCENT_PASSES * len(anchors) * len(candidates) > DESCENT_MOST_SHARE * self._proposals():
            return

        def one(objective: Objective, point: Point) -> PointArchive:
            archive = PointArchive(points, BINS)
            if self.problem.time_left > 0:
                kernel.descend(point, candidates, points.instance, objective, archive.bins, DESCENT_PASSES)
            return archive

        descents = [(objective, self.archive.best(objective)) for objective in map(self._objective, anchors)]
        for archive in in_threads(self.problem, one, descents):
            self.archive.merge(archive)

    def _report(self) -> None:
        found = self.archive.found
        extra, peaks = self.archive.bins.extra[found], self.archive.bins.peak[found]
        plain, once = self.points.plain_peak, self.points.base_cost
        half = peaks <= 0.5 * plain
        at_half = f"; half of it at +{extra[half].min() / once:.1%}" if half.any() else ""
        self.problem.progress(f"plain {plain / 2**20:.1f} MiB, least {peaks.min() / 2**20:.1f} MiB{at_half}")
