"""The whole memory-cost curve of a graph for `auto`: one sweep for every goal, and closer looks where goals lie."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from .. import bounds
from ..problem import Problem, choose
from ..solvers.rotor import entries
from ..structure.archive import Entry, pareto
from ..structure.reduced import Reduced
from . import anew, proposals, recent, small, way_down
from .anneal import Polish
from .hierarchical import Levels
from .proposals import large
from .running import teller
from .storages import Search

# How the curve is looked at; guesses. The second number of each is for large graphs.
STRETCHES, STRETCHES_LARGE = 6, 3  # parts of the curve that are looked at closer
BLOCK_PEAKS, BLOCK_PEAKS_LARGE = 6, 2  # peaks of a stretch for which blocks are joined


def curve_of(problem: Problem) -> Curve:
    """The curve of a graph, from memory if it was found before with the same weights, seed and effort."""
    return recent.curve(problem, "thorough", lambda: Curve.find(problem))


@dataclass
class Curve:
    """The frontier of a graph over all goals, in stretches by peak.

    search, polish : with the archives of the sweep; closer looks go on from copies.
    blocks : the graph as chains of blocks.
    entries : over the whole graph, in order of falling peak.
    cells : peaks that bound the stretches, rising, without resident bytes.
    least_extra : per stretch a certified lower bound on the extra cost of schedules whose peak lies there.
    looked_at : per stretch the entries that a closer look has found.
    """

    search: Search
    polish: Polish
    blocks: list[Levels]
    entries: list[Entry]
    cells: np.ndarray
    least_extra: list[float]
    looked_at: dict[int, list[Entry]] = field(default_factory=dict)

    @property
    def everything(self) -> list[Entry]:
        """The entries found so far, closer looks included."""
        return pareto([*self.entries, *(e for looked in self.looked_at.values() for e in looked)])

    @classmethod
    def find(cls, problem: Problem) -> Curve:
        """Sweep the curve."""
        reduced = Reduced(problem.graph)
        search, polish = Search(problem, reduced), Polish(problem, reduced)
        blocks: list[Levels] = []
        seeds: list[Entry] = []
        polish.enter([np.arange(len(reduced.ops))])
        if len(reduced.candidates):
            with problem.interruptible():
                blocks += proposals.blocks_of(problem)
                for e in proposals.seeds(problem, blocks):
                    seeds.append(e)
                    runs = reduced.reduced_runs(e.runs)
                    polish.enter([runs])
                    search.enter(runs)
                search.run()
            polish.enter([e.runs for e in search.entries()])
            with problem.interruptible():
                polish.run()
        # The seeds as they came too: some are too long to polish, others lose where the smallest values are left out.
        found = pareto(polish.entries() + seeds)
        least, most = max(1, found[-1].peak), max(2, found[0].peak)
        count = STRETCHES_LARGE if large(problem) else STRETCHES
        cells = np.geomspace(least, max(most, least + 1), count + 1)
        tops = [problem.graph.resident_bytes + int(c) for c in cells[1:]]
        return cls(search, polish, blocks, found, cells, bounds.extras_at(problem.graph, problem.weights, tops))

    def look_closer(self, problem: Problem) -> list[Entry]:
        """The entries, with those that a closer look adds at every stretch that may hold a better answer.

        A stretch below the best answer so far is left out only if it is certified that nothing in it serves better. So an
        answer to one goal is also seen where a larger budget, or more overhead, asks. Asked for the whole frontier it
        looks at the lowest stretch, where the sweep falls shortest: a look at all takes ten times as long as the sweep.
        """
        found = self.entries
        if problem.coarse or not len(self.search.points.reduced.candidates):
            return found
        tell = teller(problem)
        tell(found)
        for k in range(len(self.cells) - 2, -1, -1):
            if problem.time_left <= 0:
                break
            if self._may_help(problem, choose(problem, found)[0], k):
                found = pareto(found + self._look(replace(problem, whole=False), k))
                tell(found)
        return found

    def _may_help(self, problem: Problem, best: Entry, k: int) -> bool:
        """Whether stretch k may hold a better answer than `best`."""
        if problem.limit is not None:
            room = problem.limit - problem.graph.resident_bytes
            return self._begin(k) <= room and (best.peak > room or self.least_extra[k] < best.extra)
        if problem.max_overhead is not None:
            # The stretch that begins at the best peak too: an entry as small may cost less.
            return self._begin(k) <= best.peak and self.least_extra[k] <= problem.max_overhead * problem.base_cost
        return k == 0

    def _begin(self, k: int) -> float:
        """The least peak of a stretch; the lowest one has none: a closer look may find smaller entries."""
        return float(self.cells[k]) if k else 0.0

    def _look(self, problem: Problem, k: int) -> list[Entry]:
        """The entries that a closer look at stretch k finds, from memory if it was done before."""
        if k not in self.looked_at:
            found = self._found_at(problem, k)
            if problem.time_left <= 0:
                return found
            self.looked_at[k] = found
        return self.looked_at[k]

    def _found_at(self, problem: Problem, k: int) -> list[Entry]:
        """Look closer at stretch k."""
        low, high = float(self.cells[k]), float(self.cells[k + 1])
        search, polish = self.search.copy(problem), self.polish.copy(problem)
        unpolished = polish
        seeds: list[Entry] = []
        with problem.interruptible():
            count = BLOCK_PEAKS_LARGE if large(problem) else BLOCK_PEAKS
            peaks = np.geomspace(low, high, count + 1)[1:]
            seeds += proposals.all_of(
                problem, [partial(proposals.joined, problem, curve, peaks) for curve in self.blocks]
            )
            if k == 0:
                smallest = replace(problem, limit=None, max_overhead=None)
                seeds += proposals.all_of(problem, [partial(entries, smallest, curve) for curve in self.blocks])
                low = min([low, *(float(e.peak) for e in seeds)])
            polish.enter([polish.reduced.reduced_runs(e.runs) for e in seeds])
            search.look(low, high)
            polish.enter([e.runs for e in search.entries()])
            unpolished = polish.copy(problem)
            polish.look(low, high)
        found = pareto(polish.entries() + seeds)
        if not large(problem):
            found = _pressed(problem, self._within(found, low, high))
        if k == 0 and problem.time_left > 0:
            found = pareto(found + self._anew(problem, unpolished, low, high) + way_down.smallest(problem))
        if not large(problem):
            proven = small.proven_between(problem, self._begin(k), high, found)
            found = proven if proven is found else _pressed(problem, proven)
        return found

    def _anew(self, problem: Problem, unpolished: Polish, low: float, high: float) -> list[Entry]:
        """The entries of searches that begin anew at the lowest stretch. Each group of them is polished apart: joined with
        the rest, it would take its place and its effort."""
        found: list[Entry] = []
        for sources, longer in anew.groups(problem, low, high):
            polish, seeds, least = unpolished.copy(problem), list[Entry](), low
            with problem.interruptible():
                seeds += proposals.all_of(problem, sources)
                least = min([low, *(float(e.peak) for e in seeds)])
                polish.enter([polish.reduced.reduced_runs(e.runs) for e in seeds])
                polish.look(least, high, longer)
            near = self._within(polish.entries() + [e for e in seeds if e.peak <= high], least, high)
            found += seeds + (near if large(problem) else _pressed(problem, near))
        return pareto(found)

    def _within(self, found: list[Entry], low: float, high: float) -> list[Entry]:
        """New and earlier entries, minus the earlier ones whose peak is not between `low` and `high`."""
        elsewhere = {e.peak for e in self.entries if not low <= e.peak <= high}
        return [e for e in pareto(found + self.entries) if e.peak not in elsewhere]


def _pressed(problem: Problem, found: list[Entry]) -> list[Entry]:
    """The entries, each also pressed to a lower peak with the smallest values included, which the search leaves out."""
    fine = Polish(problem, Reduced(problem.graph, negligible_share=0.0))
    with problem.interruptible():
        found = pareto(found + fine.press(found))
    return found
