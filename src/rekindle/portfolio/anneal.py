"""Annealing over sequences of runs.

After Imanishi, Xu, Takagi, Wang, Castillo, A fast heuristic to optimize time-space tradeoff for large models (FastSA),
NeurIPS 2023: a sequence of ops in which runs are added, taken out and moved, with the memory of every place in a tree with
range-add and range-max.

Problem: the whole step; any op may run any number of times at any place.

Differences from the publication: it starts from seeds (the best sequences known), not from nothing; a run that is added
brings along, in the same change, runs for the inputs that are gone by then; half of the added runs aim at values that wait
at the peak; runs whose outputs nothing uses are taken out at once; writing in place is counted. No grouping of nodes is
needed then.

Optimality: none claimed.

Complexity: O(k d log n) for k changes, d the edges of an op.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..kernels import moves, sequence, slots
from ..kernels.objective import Objective
from ..model.schedule import Schedule
from ..problem import Problem, choose, register
from ..structure.archive import Archive, Entry, pareto, peak_of, within_cost, within_peak
from ..structure.reduced import Reduced
from .running import ANCHORS, BINS, CLOSER_ANCHORS, Round, in_threads, slices

# How much `anneal` searches. All are guesses; none was measured alone.
CHANGES = 1e5  # of all chains of a sweep together
ROUNDS = (Round(0.5, 0.004), Round(0.5, 0.0012))  # of a sweep and of a closer look
SMALL_OPS = 1000  # with fewer ops one run is more of the whole cost, and the temperature higher in proportion
# Of the chains that lower the peak at a fixed cost:
PRESS_CHANGES = 5e4  # of all of them together
PRESS_HEAT = 1e-4  # first temperature
PRESS_PEAK_SHARE, PRESS_BINS = 0.02, 64  # how far below its start's peak a chain tells peaks apart, in how many ranges
PRESS_EXTRA_SHARE = 1e-3  # of the plain step's cost, by which a chain may get dearer on its way: less than one op costs


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
    """Simulated annealing over sequences of runs: runs are added, taken out and moved.

    The peak is known after each change in O(log n).
    """
    graph = problem.graph
    reduced = Reduced(graph)
    polish = Polish(problem, reduced)
    plain = np.flatnonzero(graph.needed)
    polish.enter([reduced.reduced_runs(plain)])
    polish.run()
    yield from (Schedule.from_runs(graph, e.runs, "anneal") for e in choose(problem, polish.entries()))


class Polish:
    """Chains over sequences of a reduced problem, and the archive of the sequences they meet.

    base_cost : the cost of running each op of the reduced problem once. plain_peak : bytes where nothing is recomputed.
    """

    def __init__(self, problem: Problem, reduced: Reduced):
        self.problem, self.reduced = problem, reduced
        r = reduced
        self.ops = slots.pack(r.arrays, r.search_weights(problem.weights), r.shared, r.before)
        self.base_cost = float(self.ops.weights.sum()) or 1.0
        self.plain_peak = max(1.0, float(peak_of(r.arrays, r.shared, np.arange(len(r.ops)))))
        self.archive = Archive(r.largest_input, 1.02 * self.plain_peak, self._most_runs, BINS)

    @property
    def _most_runs(self) -> int:
        """The longest sequence that an archive keeps."""
        return 4 * len(self.reduced.ops) + 64

    @property
    def _empty(self) -> bool:
        return not len(self.reduced.ops) or not len(self.reduced.values)

    def enter(self, sequences: Sequence[np.ndarray]) -> None:
        """Put sequences (of the reduced problem) into the archive."""
        for runs in sequences:
            peak, cost = float(peak_of(self.reduced.arrays, self.reduced.shared, runs)), self.ops.weights[runs].sum()
            self.archive.add(Entry(peak, float(cost) - self.base_cost, runs))

    def run(self) -> None:
        """Run chains aimed at peaks between the least found and the plain one, from the archive's best for each."""
        for number, part in enumerate(ROUNDS):
            least = max(1.0, self.archive.least)
            anchors = np.geomspace(0.97 * least, max(least, 0.97 * self.plain_peak), ANCHORS)
            self._round(anchors.tolist(), part.work_share, part.heat, number)

    def look(self, low: float, high: float, longer: float) -> None:
        """Search on where the peak lies between `low` and `high` bytes; longer : times the changes of a sweep."""
        for number, part in enumerate(ROUNDS):
            anchors = np.geomspace(low, high, CLOSER_ANCHORS).tolist()
            self._round(anchors, longer * part.work_share, part.heat, number + 11)

    def press(self, starts: list[Entry], changes_each: int | None = None) -> list[Entry]:
        """Lower the peak of each of `starts` at its cost; all entries are of the whole graph.

        changes_each : for each start, the same whatever the others are; None: all starts share `PRESS_CHANGES`.
        """
        if self._empty:
            return []
        problem = self.problem
        changes = changes_each or int(PRESS_CHANGES * problem.work / max(1, len(starts)))

        def one(i: int, start: Entry) -> Archive:
            runs = self.reduced.reduced_runs(start.runs)
            lowest = (1 - PRESS_PEAK_SHARE) * start.peak
            found = Archive(lowest, start.peak, self._most_runs, PRESS_BINS)
            state = sequence.build(runs, self.ops)
            most = self.ops.weights[runs].sum() - self.base_cost + PRESS_EXTRA_SHARE * self.base_cost
            objective = within_cost(float(most), self.plain_peak, self.base_cost)
            self._chain(state, objective, found, changes, PRESS_HEAT, 23 + (0 if changes_each else i))
            return found

        found = [e for archive in in_threads(problem, one, list(enumerate(starts))) for e in archive]
        return self.reduced.whole_entries(problem.weights, found)

    def _round(self, anchors: list[float], work_share: float, heat: float, number: int) -> None:
        if self._empty:
            return
        archive, problem = self.archive, self.problem
        objectives = [within_peak(a, self.plain_peak, self.base_cost) for a in anchors]
        changes = int(CHANGES * problem.work * work_share / len(anchors))
        heat *= max(1.0, SMALL_OPS / len(self.reduced.ops))

        def one(i: int, objective: Objective, start: Entry) -> Archive:
            mine = archive.like()
            state = sequence.build(start.runs, self.ops)
            self._chain(state, objective, mine, changes, heat, number * 1009 + i * 17 + 7)
            return mine

        chains = [(i, objective, archive.best(objective)) for i, objective in enumerate(objectives)]
        for found in in_threads(problem, one, chains):
            archive.merge(found)

    def _chain(
        self, state: slots.Sequence, objective: Objective, found: Archive, changes: int, heat: float, number: int
    ) -> None:
        """Run one chain of changes from a state, while time is left; number : gives it its own random numbers."""
        for k, steps, first_heat in slices(self.problem, changes, heat):
            seed = self.problem.seed * 100_003 + number + k
            moves.anneal(state, self.ops, objective, found.bins, self.base_cost, steps, first_heat, seed)

    def entries(self) -> list[Entry]:
        """The archive over the whole graph."""
        return self.reduced.whole_entries(self.problem.weights, pareto(list(self.archive)))
