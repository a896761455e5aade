"""Annealing over sequences of runs.

After Imanishi, Xu, Takagi, Wang, Castillo, A fast heuristic to optimize time-space tradeoff for large models (FastSA),
NeurIPS 2023: a sequence of ops in which runs are added, taken out and moved, with the memory of every place in a tree with
range-add and range-max.

Problem: the whole step; any op may run any number of times at any place.

Differences from the publication: it starts from seeds (the best sequences known), not from nothing; adding a run adds
with it, in one change, what of its inputs is gone by then; half of what is added is aimed at what waits at the peak; runs
that are made in vain are taken out at once; writing in place is counted. No grouping of nodes is needed then.

Optimality: none claimed.

Complexity: O(k d log n) for k changes, d the edges of an op.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ..kernels import moves, sequence, slots
from ..model.schedule import Schedule
from ..problem import Problem, choose, register
from ..structure.archive import Archive, Entry, Goal, limit_goal, pareto, peak_of
from ..structure.reduced import Reduced
from ..structure.saved import Dropping
from .choice import in_threads, over_whole_graph, search_weights

SLICES = 8
ROUNDS = ((0.5, 0.004), (0.5, 0.0012))  # share of the work, first temperature in units of the plain step's cost
FEW = 1000  # ops; with fewer one run is more of the whole cost, and the temperature higher in proportion
CHANGES = 1e5  # of all chains together
ANCHORS = 12  # peaks at which chains aim
CLOSER, LONGER = 6, 3  # the same, for a closer look at a part of the curve, and times the changes
PRESS = 5e4  # changes of all chains that press the peak at a fixed cost together
PRESS_HEAT = 1e-4
FINE, FINE_BINS = 0.02, 64  # how far below a start such a chain tells peaks apart, and how many
TRACE = 1e-3  # what the cost may rise by, in units of the plain step's: less than any op that costs counts for


@register(
    "anneal",
    graphs="any",
    objective="least cost within a peak, or least peak within a cost, of the whole step",
    optimal="",
    complexity="O(k d log n) for k changes of ops with d edges in a sequence of n",
    citation="Imanishi, Xu, Takagi, Wang, Castillo, A fast heuristic to optimize time-space tradeoff for large models, "
    "NeurIPS 2023",
    curve=True,
)
def anneal(problem: Problem) -> Iterator[Schedule]:
    """Runs are added to a sequence, taken out and moved; the peak is known after each change in O(log n)."""
    graph = problem.graph
    reduced = Reduced(graph, Dropping(graph))
    polish = Polish(problem, reduced)
    plain = np.flatnonzero(graph.needed)
    polish.enter([reduced.reduced_runs(plain)])
    polish.run()
    yield from (Schedule.from_runs(graph, e.runs, "anneal") for e in choose(problem, polish.entries()))


class Polish:
    """Chains over sequences of a reduced problem, and the archive of what they meet."""

    def __init__(self, problem: Problem, reduced: Reduced):
        self.problem, self.reduced = problem, reduced
        r = reduced
        self.ops = slots.pack(r.arrays, search_weights(problem, r), r.shared, r.before_ptr, r.before_ids)
        self.base_cost = float(self.ops.weights.sum()) or 1.0
        self.plain_peak = max(1.0, float(peak_of(r.arrays, r.shared, np.arange(len(r.ops)))))
        self.archive = Archive(r.largest_input, 1.02 * self.plain_peak, 4 * len(r.ops) + 64)

    def enter(self, sequences: Sequence[np.ndarray]) -> None:
        """Put sequences (of the reduced problem) into the archive."""
        for runs in sequences:
            peak, cost = float(peak_of(self.reduced.arrays, self.reduced.shared, runs)), self.ops.weights[runs].sum()
            self.archive.add(Entry(peak, float(cost) - self.base_cost, runs))

    def copy(self, problem: Problem) -> Polish:
        """Another one that starts with the same archive, within the time of `problem`."""
        other = Polish.__new__(Polish)
        other.__dict__.update(self.__dict__)
        other.problem = problem
        other.archive = self.archive.like()
        other.archive.merge(self.archive)
        return other

    def run(self) -> None:
        """Chains aimed at peaks between the least found and the plain one, from the archive's best for each."""
        for number, (share, heat) in enumerate(ROUNDS):
            least = max(1.0, self.archive.least)
            anchors = np.geomspace(0.97 * least, max(least, 0.97 * self.plain_peak), ANCHORS)
            self._round(anchors.tolist(), share, heat, number)

    def look(self, low: float, high: float, longer: int = LONGER) -> None:
        """Go on where the peak lies between low and high; longer : times the changes of a sweep."""
        for number, (share, heat) in enumerate(ROUNDS):
            self._round(np.geomspace(low, high, CLOSER).tolist(), longer * share, heat, number + 11)

    def press(self, starts: list[Entry]) -> list[Entry]:
        """What is found over the whole graph with the least peak at the cost of each of `starts` (of the whole graph)."""
        if not len(self.reduced.ops) or not len(self.reduced.values):
            return []
        stop = self.problem
        changes = int(PRESS * stop.effort / max(1, len(starts)))

        def one(i: int, start: Entry) -> Archive:
            runs = self.reduced.reduced_runs(start.runs)
            found = Archive((1 - FINE) * start.peak, start.peak, 4 * len(self.reduced.ops) + 64, FINE_BINS)
            state = sequence.build(runs, self.ops)
            most = self.ops.weights[runs].sum() - self.base_cost + TRACE * self.base_cost
            goal = (math.inf, float(most), self.plain_peak, self.base_cost, 1.0, 1e-3)
            self._chain(state, goal, found, changes, PRESS_HEAT, 23 + i)
            return found

        found = [e for archive in in_threads(stop, one, list(enumerate(starts))) for e in archive]
        return over_whole_graph(self.problem, self.reduced, found)

    def _round(self, anchors: list[float], share: float, heat: float, number: int) -> None:
        if not len(self.reduced.ops) or not len(self.reduced.values):
            return
        archive, stop = self.archive, self.problem
        goals = [limit_goal(a, self.plain_peak, self.base_cost) for a in anchors]
        changes = int(CHANGES * self.problem.effort * share / len(anchors))
        heat *= max(1.0, FEW / len(self.reduced.ops))

        def one(i: int, goal: Goal, start: Entry) -> Archive:
            mine = archive.like()
            self._chain(sequence.build(start.runs, self.ops), goal, mine, changes, heat, number * 1009 + i * 17 + 7)
            return mine

        starts = [archive.best(g) for g in goals]
        for found in in_threads(stop, one, list(zip(range(len(goals)), goals, starts, strict=True))):
            archive.merge(found)

    def _chain(self, state: slots.Sequence, goal: Goal, found: Archive, changes: int, heat: float, number: int) -> None:
        """One chain of changes from a state, while time is left; number : tells its random numbers from others'."""
        for k in range(SLICES):
            if self.problem.time_left <= 0:
                break
            moves.anneal(
                state, self.ops, goal, found.arrays, self.base_cost, max(64, changes // SLICES),
                heat * (1 - k / SLICES) ** 2, self.problem.seed * 100_003 + number + k,
            )  # fmt: skip

    def entries(self) -> list[Entry]:
        """What was found, over the whole graph."""
        return over_whole_graph(self.problem, self.reduced, pareto(list(self.archive)))
