"""A search of one stretch of the memory-cost curve: blocks joined for its peaks, then annealing over modes and order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..problem import Problem
from ..structure.archive import Entry, pareto
from ..structure.reduced import Reduced
from . import proposals, small
from .anneal import Polish
from .hierarchical import Levels
from .point_seeds import seeds as point_seeds
from .running import Round
from .storages import Search

# How much a stretch is searched. All are guesses, tried on a dozen models.
WORK_STEPS = 3e7  # elementary steps of all chains of a round together
PROPOSALS_MORE = 6e3  # proposals of a round beside these steps
MOST_PROPOSALS_PER_CANDIDATE = 1e3  # of a round, for each value whose mode may change
LEAST_ROUNDS = 2  # these run in any case; a further one follows only while the one before it gained
GAIN_SHARE = 5e-4  # of the plain step's cost: the least gain at any anchor for which another round is worth its time
REACH = 1.5  # times the upper end of the stretch: larger entries are no seeds


@dataclass(frozen=True)
class FocusSettings:
    """How far one effort searches a stretch. All are guesses, tried on a dozen models.

    anchors : numbers of peaks of the stretch at which chains aim, spread from its lower end; rounds take them in turn. One
        search from other peaks often leaves a local optimum that a longer one stays in. Blocks are joined for the first.
    rounds : of chains, at most.
    polish_times : what they find is polished as sequences of runs, by so many times the changes of a sweep; 0: not at all.
    """

    anchors: tuple[int, ...]
    rounds: tuple[Round, ...]
    polish_times: float = 0.0


SETTINGS = {
    "quick": FocusSettings((2,), (Round(0.5, 0.003),)),
    "normal": FocusSettings((5, 6), (Round(1.0, 0.006), Round(1.0, 0.006), Round(1.0, 0.002), Round(1.0, 0.001))),
    "thorough": FocusSettings(
        (6, 7, 5),
        (Round(3.0, 0.012), Round(3.0, 0.006), Round(3.0, 0.006), Round(3.0, 0.003), Round(3.0, 0.0015)),
        3.0,
    ),
}
# With effort "normal", a stretch is searched longer where its seeds cost at least this share of the plain step: elsewhere a
# longer search gained less than 1 % of the step on a dozen models.
DEAR_SHARE = 0.1
DEAR = FocusSettings((5, 6, 3), (Round(1.0, 0.006), Round(1.0, 0.006), Round(1.5, 0.012)), 0.5)
# Near the floor, where few seeds lead on: hot chains first. Measured on a LoRA at 0.3: +38.6 % where the others end at 42.3.
DEEP = FocusSettings((3, 4, 5), (Round(1.5, 0.012), Round(1.5, 0.006), Round(1.0, 0.002)), 0.5)


class Focus:
    """Searches stretches of one graph's curve.

    reduced : the reduced problem. blocks : the graph as chains of blocks.
    """

    def __init__(self, problem: Problem, reduced: Reduced, blocks: list[Levels]):
        self.reduced, self.blocks = reduced, blocks
        self.search = Search(problem, reduced)
        self.settings = SETTINGS[problem.effort]
        if len(reduced.candidates):
            for point in point_seeds(self.search.points, late=True):
                self.search.record(point)

    def plain_entries(self, problem: Problem) -> list[Entry]:
        """The entries of the points from which chains begin, before any search."""
        return self.reduced.whole_entries(problem.weights, self.search.entries())

    def sweep(self, problem: Problem, known: list[Entry]) -> list[Entry]:
        """The entries of a search of the whole curve that begins at known entries of the whole graph."""
        if not len(self.reduced.candidates):
            return []
        search, polish = self.search.copy(problem), Polish(problem, self.reduced)
        starts = [np.arange(len(self.reduced.ops)), *(self.reduced.reduced_runs(e.runs) for e in known)]
        with problem.interruptible():
            for runs in starts:
                search.enter(runs)
            search.run()
        polish.enter([*starts, *(e.runs for e in search.entries())])
        with problem.interruptible():
            polish.run()
        return polish.entries()

    def look(
        self, problem: Problem, low: float, high: float, known: list[Entry], longer: FocusSettings | None = None
    ) -> list[Entry]:
        """The entries found between the peaks `low` and `high`, in bytes without the resident ones.

        known : entries of the whole graph from which chains may begin. longer : settings for effort
            "normal" in place of its own.
        """
        s = self.settings if longer is None or problem.effort != "normal" else longer
        anchors = _spread(low, high, s.anchors[0])
        joined: list[Entry] = []
        if not len(self.reduced.candidates):
            return joined
        search = self.search.copy(problem)
        with problem.interruptible():
            joined += proposals.all_of(
                problem, [partial(proposals.joined, problem, curve, anchors) for curve in self.blocks]
            )
            starts = pareto([*joined, *(e for e in known if e.peak <= REACH * high)])
            for e in starts:
                search.enter(self.reduced.reduced_runs(e.runs))
            self._rounds(problem, search, s.rounds, [_spread(low, high, n) for n in s.anchors])
        found = pareto([*joined, *self.reduced.whole_entries(problem.weights, search.entries())])
        if not s.polish_times:
            return found
        found = self.polished(problem, pareto([*found, *starts]), low, high, s.polish_times)
        return found if proposals.large(problem) else small.proven_between(problem, low, high, found)

    def polished(self, problem: Problem, found: list[Entry], low: float, high: float, times: float) -> list[Entry]:
        """The entries with those that annealing over sequences of runs adds between two peaks, pressed to lower peaks.

        times : how many times the changes of a sweep are tried.
        """
        polish = Polish(problem, self.reduced)
        with problem.interruptible():
            polish.enter([np.arange(len(self.reduced.ops))])
            polish.enter([self.reduced.reduced_runs(e.runs) for e in found])
            polish.look(max(1.0, low), max(2.0, high), times)
        found = pareto(found + polish.entries())
        if proposals.large(problem):
            return found
        fine = Polish(problem, Reduced(problem.graph, negligible_share=0.0))
        with problem.interruptible():
            found = pareto(found + fine.press([e for e in found if low <= e.peak <= high]))
        return found

    def _rounds(self, problem: Problem, search: Search, rounds: Sequence[Round], choices: list[np.ndarray]) -> None:
        """Run rounds of chains while they gain. choices : the peaks to aim at, one set a round, in turn."""
        base = search.points.base_cost
        proposals = WORK_STEPS / self.reduced.work + PROPOSALS_MORE
        proposals = min(proposals, MOST_PROPOSALS_PER_CANDIDATE * len(self.reduced.candidates))
        every = np.unique(np.concatenate(choices)).tolist()
        before = _least_extras(search, every)
        for k, part in enumerate(rounds):
            if problem.time_left <= 0:
                return
            anchors = choices[k % len(choices)].tolist()
            search.chains(anchors, proposals * part.work_share, part.heat, 101 + k)
            now = _least_extras(search, every)
            gained = np.isinf(before) & np.isfinite(now) | (now < before - GAIN_SHARE * base)
            if k + 1 >= LEAST_ROUNDS and not gained.any():
                return
            before = now


def _spread(low: float, high: float, count: int) -> np.ndarray:
    return np.geomspace(max(1.0, low), max(2.0, high), count + 1)[:-1]


def cheapest(found: Sequence[Entry], room: float) -> float:
    """The least extra cost among the entries within a peak; infinite where none fits."""
    return min((e.extra for e in found if e.peak <= room), default=float("inf"))


def _least_extras(search: Search, anchors: Sequence[float]) -> np.ndarray:
    """float64 [anchors]: the least extra cost found within each peak; infinite where nothing fits."""
    bins = search.archive.bins
    return np.array([bins.extra[bins.peak <= a].min(initial=np.inf) for a in anchors])
