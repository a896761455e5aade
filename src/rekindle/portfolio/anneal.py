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
from copy import copy
from dataclasses import dataclass

import numpy as np

from ..kernels import moves, sequence, slots
from ..kernels.aim import Aim
from ..model.schedule import Schedule
from ..problem import Problem, choose, register
from ..structure.archive import Archive, Entry, pareto, peak_of, within_cost, within_peak
from ..structure.reduced import Reduced
from ..structure.saved import Dropping
from .on_reduced import over_whole_graph, search_weights
from .rounds import Round
from .threads import in_threads


@dataclass(frozen=True)
class AnnealSettings:
    """How much `anneal` searches. All settings are guesses; none was measured alone.

    changes : of all chains of a sweep together.
    rounds : of a sweep and of a closer look.
    small_ops : with fewer ops one run is more of the whole cost, and the temperature higher in proportion.
    anchors : peaks at which the chains of a sweep aim.
    closer_anchors : the same for a closer look at a part of the curve,
    closer_times : and how many times as many changes that makes.
    press_changes : of all chains together that lower the peak at a fixed cost.
    press_heat : first temperature of the chains that press.
    press_peak_share : of a start's peak; how far below it such a chain tells peaks apart,
    press_bins : and in how many ranges.
    press_extra_share : of the plain step's cost; how much dearer such a chain may get on its way: less than one op that
        costs anything.
    bins : ranges of peaks that the archive tells apart.
    slices : parts of a chain, between which it sees that time is up.
    """

    changes: float = 1e5
    rounds: tuple[Round, ...] = (Round(0.5, 0.004), Round(0.5, 0.0012))
    small_ops: int = 1000
    anchors: int = 12
    closer_anchors: int = 6
    closer_times: int = 3
    press_changes: float = 5e4
    press_heat: float = 1e-4
    press_peak_share: float = 0.02
    press_bins: int = 64
    press_extra_share: float = 1e-3
    bins: int = 256
    slices: int = 8


SETTINGS = AnnealSettings()


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
    reduced = Reduced(graph, Dropping(graph))
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
        self.ops = slots.pack(r.arrays, search_weights(problem, r), r.shared, r.before)
        self.base_cost = float(self.ops.weights.sum()) or 1.0
        self.plain_peak = max(1.0, float(peak_of(r.arrays, r.shared, np.arange(len(r.ops)))))
        self.archive = Archive(r.largest_input, 1.02 * self.plain_peak, self._most_runs, SETTINGS.bins)

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

    def copy(self, problem: Problem) -> Polish:
        """Another one that starts with the same archive, within the time of `problem`."""
        other = copy(self)
        other.problem = problem
        other.archive = self.archive.like()
        other.archive.merge(self.archive)
        return other

    def run(self) -> None:
        """Run chains aimed at peaks between the least found and the plain one, from the archive's best for each."""
        for number, part in enumerate(SETTINGS.rounds):
            least = max(1.0, self.archive.least)
            anchors = np.geomspace(0.97 * least, max(least, 0.97 * self.plain_peak), SETTINGS.anchors)
            self._round(anchors.tolist(), part.work_share, part.heat, number)

    def look(self, low: float, high: float, longer: float = SETTINGS.closer_times) -> None:
        """Search on where the peak lies between `low` and `high` bytes; longer : times the changes of a sweep."""
        for number, part in enumerate(SETTINGS.rounds):
            anchors = np.geomspace(low, high, SETTINGS.closer_anchors).tolist()
            self._round(anchors, longer * part.work_share, part.heat, number + 11)

    def press(self, starts: list[Entry], changes_each: int | None = None) -> list[Entry]:
        """Lower the peak of each of `starts` at its cost; all entries are of the whole graph.

        changes_each : for each start, the same whatever the others are; None: all starts share `press_changes`.
        """
        if self._empty:
            return []
        problem = self.problem
        changes = changes_each or int(SETTINGS.press_changes * problem.work / max(1, len(starts)))

        def one(i: int, start: Entry) -> Archive:
            runs = self.reduced.reduced_runs(start.runs)
            lowest = (1 - SETTINGS.press_peak_share) * start.peak
            found = Archive(lowest, start.peak, self._most_runs, SETTINGS.press_bins)
            state = sequence.build(runs, self.ops)
            most = self.ops.weights[runs].sum() - self.base_cost + SETTINGS.press_extra_share * self.base_cost
            aim = within_cost(float(most), self.plain_peak, self.base_cost)
            self._chain(state, aim, found, changes, SETTINGS.press_heat, 23 + (0 if changes_each else i))
            return found

        found = [e for archive in in_threads(problem, one, list(enumerate(starts))) for e in archive]
        return over_whole_graph(problem, self.reduced, found)

    def _round(self, anchors: list[float], work_share: float, heat: float, number: int) -> None:
        if self._empty:
            return
        archive, problem = self.archive, self.problem
        aims = [within_peak(a, self.plain_peak, self.base_cost) for a in anchors]
        changes = int(SETTINGS.changes * problem.work * work_share / len(anchors))
        heat *= max(1.0, SETTINGS.small_ops / len(self.reduced.ops))

        def one(i: int, aim: Aim, start: Entry) -> Archive:
            mine = archive.like()
            self._chain(sequence.build(start.runs, self.ops), aim, mine, changes, heat, number * 1009 + i * 17 + 7)
            return mine

        starts = [archive.best(a) for a in aims]
        for found in in_threads(problem, one, list(zip(range(len(aims)), aims, starts, strict=True))):
            archive.merge(found)

    def _chain(self, state: slots.Sequence, aim: Aim, found: Archive, changes: int, heat: float, number: int) -> None:
        """Run one chain of changes from a state, while time is left; number : gives it its own random numbers."""
        slices = SETTINGS.slices
        for k in range(slices):
            if self.problem.time_left <= 0:
                break
            moves.anneal(
                state, self.ops, aim, found.bins, self.base_cost, max(64, changes // slices),
                heat * (1 - k / slices) ** 2, self.problem.seed * 100_003 + number + k,
            )  # fmt: skip

    def entries(self) -> list[Entry]:
        """The archive over the whole graph."""
        return over_whole_graph(self.problem, self.reduced, pareto(list(self.archive)))
