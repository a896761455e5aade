"""The memory-cost curve of a graph: seeds for all of it, a search only in the stretch in which the goal lies.

The curve is cut into stretches by peak, at round shares of the plain step's peak (of the captured one's, where the graph is a
rewrite of it), since people ask for half the memory and not for 0.4937 of it. A search looks at the one stretch in which the
goal lies (see `focus`), or near the floor (see `way_down`), and takes a few tenths of a second (more with effort "thorough") in
place of many seconds for the whole curve.

A larger budget never gives a slower plan, although another stretch is searched for it. A budget in stretch k is answered from
the seeds A, which serve every goal, and from the entries F_k that the search of stretch k found. An entry of F_k counts only
if it costs at least as much as the seeds at the upper end of the stretch: so every budget beyond the stretch has an answer as
cheap, and all budgets within it share F_k. Where an entry that may serve the goal is cheaper (the seeds are poor there),
stretch k + 1 is searched too, whose answers may lie lower than its seeds.

Below the smallest seed the way down leads in passes (see `way_down`). Few people need all of it, so the lowest stretch is
divided when a goal first falls into it: one part for all that few passes reach with room to spare, and the rest.

Last, entries that miss the goal by up to 2 %, also those of the next stretch, are pressed to a lower peak at their cost (see
`Polish.press`): budgets are missed by kilobytes. Each entry is pressed in a way that depends on it alone, so the order of
answers stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from .. import bounds
from ..problem import Problem
from ..saying.shares import EPS
from ..structure.archive import Entry, entry, pareto
from ..structure.reduced import Reduced
from . import anew, proposals, recent, way_down
from .anneal import Polish
from .focus import DEAR, DEAR_SHARE, DEEP, Focus, cheapest
from .hierarchical import Levels
from .running import in_threads, teller

# How the curve is cut, and how far its answers are pressed. All are guesses.
SHARES = (  # of the plain step's activation peak: ends of stretches
    0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9,
)  # fmt: skip
NEAR_SHARE = 0.02  # of the goal's peak: entries that miss it by no more are pressed
PRESS_CHANGES = 15_000  # for each entry that is pressed
# Upper end of the lowest stretch, as a multiple of the smallest seed's peak: the smallest seeds cost far more than those a
# little larger. The second is of effort "thorough".
LOWEST_WIDTH, LOWEST_WIDTH_THOROUGH = 1.1, 1.35
# Lower end of the upper part of the lowest stretch, as a multiple of the least peak that the way down reaches in few passes.
EASY_ROOM = 1.07
EASY_WIDTH = 0.9  # share of the lowest stretch's upper end; where that part would begin higher, the stretch stays whole
# Of the plain step's cost: a stretch whose seeds are certified to lie so close to the least cost is not looked at.
ENOUGH_SHARE = 1e-3


def stretches_of(problem: Problem) -> Stretches:
    """The stretches of a graph, from memory if they were made before with the same weights, seed and effort."""
    return recent.curve(problem, lambda: Stretches.of(problem))


@dataclass
class Stretches:
    """The curve of a graph.

    seeds : entries that serve every goal, in order of falling peak.
    cells : peaks that bound the stretches, rising, in bytes without the resident ones. The lowest stretch ends a
        little above the smallest seed, and is divided later.
    focus : the search of one stretch.
    found : per stretch that was looked at, by its upper end, the entries found there.
    pressed : what pressing gave, by the peak and the extra cost of the entry that was pressed.
    divided : whether it was looked at where to divide the lowest stretch.
    easy : entries of the way down after few passes, where the lowest stretch was divided.
    """

    seeds: list[Entry]
    cells: list[float]
    focus: Focus
    found: dict[float, list[Entry]] = field(default_factory=dict)
    pressed: dict[tuple[float, float], list[Entry]] = field(default_factory=dict)
    divided: bool = False
    easy: list[Entry] = field(default_factory=list)

    @property
    def everything(self) -> list[Entry]:
        """The entries found so far."""
        looked = [*self.found.values(), *self.pressed.values()]
        return pareto([*self.seeds, *(e for found in looked for e in found)])

    @classmethod
    def of(cls, problem: Problem) -> Stretches:
        """The seeds of the whole curve."""
        graph = problem.graph
        plain_step = entry(graph, problem.weights, np.flatnonzero(graph.needed))
        blocks: list[Levels] = []
        seeds = [plain_step]
        with problem.interruptible():
            blocks += proposals.blocks_of(problem)
        with problem.interruptible():
            seeds += proposals.seeds(problem, blocks)
        focus = Focus(problem, Reduced(graph), blocks)
        seeds, width = pareto(seeds + focus.plain_entries(problem)), LOWEST_WIDTH
        if problem.effort == "thorough":
            seeds, width = pareto(seeds + focus.sweep(problem, seeds)), LOWEST_WIDTH_THOROUGH
        least, plain = width * seeds[-1].peak, float(problem.plain_bytes or plain_step.peak)
        # One byte below the share: a budget is that share, rounded down.
        ends = [float(int(share * plain) - 1) for share in SHARES]
        cells = [0.0, least, *(x for x in ends if x > least), max(plain, float(plain_step.peak), least + 1)]
        return cls(seeds, cells, focus)

    def answers(self, problem: Problem) -> list[Entry]:
        """The entries that serve the problem's goal, in order of falling peak; all there are for the whole frontier."""
        if problem.whole:
            return self._everything(problem)
        tell = teller(problem)
        if problem.room is not None:
            found = self._within(problem, problem.room, tell)
        elif problem.max_overhead is not None:
            found = self._below(problem, problem.max_overhead * problem.base_cost, tell)
        else:
            found = self._least(problem)
        tell(found)
        return found

    # -- goals ---------------------------------------------------------------------------------------------------------
    def _everything(self, problem: Problem) -> list[Entry]:
        """The whole frontier; asked for a coarse one, without the way down."""
        found = list(self.seeds)
        if not problem.coarse:
            self._divide_lowest(problem)
        last = 0 if not problem.coarse else 2 if self.easy else 1
        left = range(last, len(self.cells) - 1)
        in_turn = [
            k for first in (0, 2, 1, 3) for k in left[first::4]
        ]  # all along the curve, should time end the search
        for i, k in enumerate(in_turn):
            if problem.time_left > 0:
                found += self._look(replace(problem, whole=False).part(1 / (len(in_turn) - i)), k)
        return pareto(found)

    def _within(self, problem: Problem, room: float, tell: Callable[[list[Entry]], None]) -> list[Entry]:
        """Entries for a budget of `room` bytes."""
        k = self._stretch(problem, room)
        tell(self.seeds)
        reach = room * (1 + NEAR_SHARE)
        found = self._allowed(problem, k, reach)
        if k < len(self.cells) - 2 and reach > self.cells[k + 1]:  # what misses the goal may lie in the next stretch
            found = pareto(found + self._allowed(problem, k + 1, reach))
        least = bounds.extras_at(problem.graph, problem.weights, [problem.graph.with_resident(int(room))])[0]
        best = cheapest(found, room)
        if best <= least * (1 + EPS) + EPS * problem.base_cost:
            return found
        near = [e for e in found if room < e.peak <= room * (1 + NEAR_SHARE) and e.extra < best]
        return pareto(found + self._press(problem, near))

    def _below(self, problem: Problem, extra: float, tell: Callable[[list[Entry]], None]) -> list[Entry]:
        """Entries for the least peak within an extra cost."""
        extra += EPS * problem.base_cost
        found = list(self.seeds)
        tell(found)
        k = self._stretch(problem, _smallest(found, extra))
        floor = bounds.at_overhead(problem.graph, problem.weights, problem.max_overhead or 0.0).bytes
        while True:
            found = pareto(found + self._allowed(problem, k, extra=extra))
            peak = _smallest(found, extra)
            if problem.graph.with_resident(peak) <= floor or k == 0 or peak > self.cells[k] or problem.time_left <= 0:
                break
            k = self._stretch(problem, self.cells[k] - 1)
        near = [e for e in found if peak <= e.peak <= peak / (1 - NEAR_SHARE) and e.extra <= extra]
        return pareto(found + self._press(problem, near))

    def _least(self, problem: Problem) -> list[Entry]:
        """Entries for the least peak at any cost."""
        self._divide_lowest(problem)
        found = pareto(self.seeds + self._look(problem, 0))
        least = found[-1]
        near = [e for e in found if e.peak <= least.peak * (1 + NEAR_SHARE) and e.extra < least.extra]
        return pareto(found + [e for e in self._press(problem, near) if e.peak >= least.peak])

    # -- stretches -----------------------------------------------------------------------------------------------------
    def _stretch(self, problem: Problem, peak: float) -> int:
        if peak < self.cells[1]:
            self._divide_lowest(problem)
        return min(max(int(np.searchsorted(self.cells, peak, "right")) - 1, 0), len(self.cells) - 2)

    def _divide_lowest(self, problem: Problem) -> None:
        """Divide the lowest stretch, once: where depends on no goal, so the order of goals does not matter."""
        if self.divided:
            return
        down = way_down.reached(problem, way_down.EASY_PASSES)
        if problem.time_left <= 0:
            return
        self.divided = True
        end = EASY_ROOM * down.least
        if end <= EASY_WIDTH * self.cells[1]:
            self.easy = down.entries(problem)
            self.cells.insert(1, end)

    def _allowed(self, problem: Problem, k: int, most: float = np.inf, extra: float = np.inf) -> list[Entry]:
        """The seeds, and the entries of stretch k that no answer to a larger budget costs more than.

        most, extra : of a larger peak than this, or a higher cost, the stretch's entries are left out.
        """
        found = [e for e in self._look(problem, k) if e.peak <= most and e.extra <= extra]
        top = len(self.cells) - 2
        if k == top:
            return pareto(self.seeds + found)
        end = self.cells[k + 1]
        least = cheapest(self.seeds, end)
        if any(e.extra < least for e in found):
            least = min(least, cheapest(self._allowed(problem, k + 1, end), end))
        return pareto(self.seeds + [e for e in found if e.extra >= least])

    def _look(self, problem: Problem, k: int) -> list[Entry]:
        """The entries found in stretch k, from memory if it was looked at before."""
        end = self.cells[k + 1]
        if end not in self.found:
            found = self._found_at(problem, k)
            if problem.time_left <= 0:
                return found
            self.found[end] = found
        return self.found[end]

    def _found_at(self, problem: Problem, k: int) -> list[Entry]:
        low, high = self.cells[k], self.cells[k + 1]
        if k == 0:
            return self._below_seeds(problem, way_down.reached(problem).entries(problem), 0.0, high)
        if k == 1 and self.easy:
            return self._below_seeds(problem, self.easy, low, high)
        worst = cheapest(self.seeds, low)
        top = problem.graph.with_resident(int(high))
        if worst - bounds.extras_at(problem.graph, problem.weights, [top])[0] <= ENOUGH_SHARE * problem.base_cost:
            return []
        dear = worst >= DEAR_SHARE * problem.base_cost
        return self.focus.look(problem, low, high, self.seeds, DEAR if dear else None)

    def _below_seeds(self, problem: Problem, down: list[Entry], low: float, high: float) -> list[Entry]:
        """The entries of a stretch where seeds are rare. down : of the way down; how low they go does not depend on timings,
        only their costs do. With effort "thorough" other searches may go lower."""
        least = max(low, min(float(down[-1].peak), high))
        high = max(high, LOWEST_WIDTH * least)
        more = [e for e in way_down.evicted(problem, least, high) if e.peak >= least]
        known = pareto([*down, *more, *(e for e in self.seeds if e.peak <= high)])
        lowest = least
        if problem.effort == "thorough":
            known = pareto([*known, *(e for e in self._anew(problem, least, high) if e.peak >= low)])
            least, lowest = min(least, float(known[-1].peak)), low
        found = way_down.cheaper(problem, known, high)
        found += self.focus.look(problem, least, high, known, DEEP if low else None)
        return pareto(known + [e for e in found if e.peak >= lowest])

    def _anew(self, problem: Problem, low: float, high: float) -> list[Entry]:
        """The entries of searches that begin anew. Each group of them is polished apart: joined with the rest, it would take
        its place and its effort. Once more by random numbers of its own, since all begin at the seeds of the curve too."""
        found: list[Entry] = []
        for k, sources in enumerate(anew.groups(problem, low, high)):
            seeds: list[Entry] = []
            with problem.interruptible():
                seeds += proposals.all_of(problem, sources)
            least = min([low, *(float(e.peak) for e in seeds)])
            for other in (0, 1 + k):
                by_chance = replace(problem, seed=problem.seed + other)
                found += self.focus.polished(by_chance, seeds + self.seeds, least, high, 1.0)
        return pareto(found)

    def _press(self, problem: Problem, near: list[Entry]) -> list[Entry]:
        if proposals.large(problem) or not near:
            return []
        fine = Polish(problem, Reduced(problem.graph, negligible_share=0.0))

        def one(e: Entry) -> list[Entry]:
            return [x for x in fine.press([e], PRESS_CHANGES) if x.extra <= e.extra]

        with problem.interruptible():
            fresh = [e for e in near if (e.peak, e.extra) not in self.pressed]
            for e, found in zip(fresh, in_threads(problem, one, [(e,) for e in fresh]), strict=True):
                self.pressed[e.peak, e.extra] = found
        found = [x for e in near for x in self.pressed.get((e.peak, e.extra), ())]
        if problem.time_left <= 0:  # a press that was cut short is no answer to another goal
            for e in fresh:
                self.pressed.pop((e.peak, e.extra), None)
        return found


def _smallest(found: list[Entry], extra: float) -> float:
    """The least peak among the entries within an extra cost."""
    return min((float(e.peak) for e in found if e.extra <= extra), default=float("inf"))
