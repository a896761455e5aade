"""The portfolio: fast solvers give seeds, searches join and polish them, an archive keeps the whole curve.

Rekindle.

Problem: the goal itself: least cost within a peak, or least peak within a cost, of the whole step.

How, in this order:

1. Graphs of up to a few dozen ops are solved exactly (see `exact`), if that takes few steps.
2. Blocks with options are joined (see `hierarchical`), and the fast published solvers propose schedules (see `proposals`).
3. `storages` sweeps the whole curve with modes per storage and the order of ops.
4. `anneal` polishes what was found as sequences of runs, over the whole curve.
5. The three look closer at the stretch of the curve where the goal lies. At the lowest one, where moves from what is known
   lead nowhere, blocks are also asked for the smallest plan that they give, and searches begin anew, without what the sweep
   found: `storages`, `rotor`, `dtr`, `beam`, and two by FLOPs (see `anew`). What they find is polished as well.
6. What they find there is pressed (`Polish.press`): at the same cost the least peak, with the values looked at that the
   search leaves out because they weigh next to nothing. A budget is missed by kilobytes as well.
7. On graphs of up to 128 ops the exact search answers at round peaks of the stretch what it can.

On large graphs (more than `proposals.LARGE` ops) of step 2 only what matters most is done, and nothing of steps 6 and 7.

A larger budget never gives a slower plan, and more overhead never a larger one: steps 2 to 4 do not know the goal, and
steps 5 to 7 look at every stretch of which it is not certified that it cannot serve the goal better. Both cores
are used; the result is the same for the same seed, unless a time limit or an interruption (Ctrl-C) cuts the
search short, which then gives the best so far. A time limit beyond half a minute makes the search work longer.

Optimality: proven where step 1 applies or a bound is met (`status`); else `gap` tells the distance.

Complexity: O(k n) for k proposals on n ops; k is chosen so that seconds pass.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from .. import bounds
from ..kernels import moves
from ..kernels.compiled import to_compile
from ..model.judge import simulate
from ..model.schedule import Schedule
from ..problem import Problem, choose, register
from ..sizes import format_bytes
from ..solvers.rotor import entries, thin
from ..structure.archive import Entry, pareto
from ..structure.reduced import Reduced
from ..structure.saved import Dropping
from . import anew, proposals, small
from .anneal import Polish
from .hierarchical import Levels
from .proposals import large
from .storages import Search

LIMITS = 6  # peaks of a stretch for which blocks are joined
CELLS = 6  # stretches of the curve that are looked at closer
EPS = 1e-9  # of an overhead
REMEMBERED = 4  # curves kept, so that the next goal for the same graph is answered at once


def _retry(problem: Problem, best: Schedule | None) -> Iterator[Schedule]:
    """Further candidates, searched for with ops costed in seconds, or as one each.

    Where many ops cost nothing (element-wise ones, in FLOPs), a search by cost has little to go by. Within an overhead
    the whole curve by seconds is worth a search only where the overhead allows the smallest plan of the sweep, and `best`
    is not certified to be the smallest: the sweep is the same for every overhead, so where less allows it, more does.
    """
    if problem.max_overhead is None:
        for weights in _other_weights(problem, "unit", "seconds"):
            yield from auto(replace(problem, weights=weights))
        return
    others = _other_weights(problem, "seconds")
    if not others or best is None:
        return
    peak = simulate(problem.graph, best).peak_bytes
    if bounds.at_overhead(problem.graph, problem.weights, problem.max_overhead).bytes >= peak:
        return
    *_, smallest = auto(replace(problem, max_overhead=None, whole=True, coarse=True))
    extra = float(problem.weights[smallest.runs].sum()) - problem.base_cost
    if extra <= (problem.max_overhead + EPS) * problem.base_cost and problem.time_left > 0:
        yield from auto(replace(problem, max_overhead=None, whole=True, weights=others[0]))


def _other_weights(problem: Problem, *units: str) -> list[np.ndarray]:
    """The costs of ops in `units`, where some ops cost nothing in the problem's own unit and time is left."""
    free = problem.weights[problem.graph.weights("unit") > 0] == 0
    if problem.time_left <= 0 or not free.any():
        return []
    return [w for w in map(problem.graph.weights, units) if w.any() and not np.array_equal(w, problem.weights)]


@register(
    "auto",
    graphs="any",
    objective="the goal itself: least cost within a peak, or least peak within a cost, of the whole step",
    optimal="where it proves it: small graphs, or a bound that is met",
    complexity="O(k n) for k proposals on n ops; k is chosen so that a few seconds pass",
    citation="this project; see the solvers it joins",
    curve=True,
    thorough=True,
    joins=True,
    retry=_retry,
)
def auto(problem: Problem) -> Iterator[Schedule]:
    """The portfolio: seeds from fast solvers, a sweep of the whole curve, a closer look where the goal lies."""
    if problem.whole:
        yield Schedule.baseline(problem.graph, "auto")
    proven = small.proven(problem)
    if proven:
        yield from proven
        return
    if to_compile(moves.anneal):
        problem.progress("compiling the search, once after an installation: about a minute")
    curve = _curve(problem)
    chosen = thin(choose(problem, curve.look_closer(problem)))
    yield from (Schedule.from_runs(problem.graph, e.runs, "auto") for e in chosen)


_curves: OrderedDict[tuple[object, ...], Any] = OrderedDict()


def _curve(problem: Problem) -> Curve:
    """The curve of a graph, from memory if it was found before with the same weights, seed and effort."""
    g = problem.graph
    costs = [a.tobytes() for a in (problem.weights, g.weights("seconds"), g.arrays.workspace)]
    key = (g.hash, *costs, problem.seed, problem.effort)
    if key in _curves:
        _curves.move_to_end(key)
        return _curves[key]
    curve = Curve.find(problem)
    if problem.time_left > 0:  # whole, not cut short
        _curves[key] = curve
        while len(_curves) > REMEMBERED:
            _curves.popitem(last=False)
    return curve


@dataclass
class Curve:
    """The frontier of a graph over all goals.

    entries : over the whole graph, in order of falling peak.
    cells : peaks that bound the stretches, rising, without resident bytes.
    least_extra : per stretch what a schedule costs at least whose peak lies there; certified.
    looked_at : per stretch what a closer look has found.
    """

    search: Search
    polish: Polish
    blocks: list[Levels]
    entries: list[Entry]
    cells: np.ndarray
    least_extra: list[float]
    looked_at: dict[int, list[Entry]]

    @classmethod
    def find(cls, problem: Problem) -> Curve:
        """Sweep the curve."""
        reduced = Reduced(problem.graph, Dropping(problem.graph))
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
                    search.record(search.point_of(runs))
                search.run()
            polish.enter([e.runs for e in search.entries()])
            with problem.interruptible():
                polish.run()
        # As they came: some are too long to polish, others lose where the least values are not looked at.
        found = pareto(polish.entries() + seeds)
        least, most = max(1, found[-1].peak), max(2, found[0].peak)
        count = CELLS // 2 if large(problem) else CELLS
        cells = np.geomspace(least, max(most, least + 1), count + 1)
        tops = [problem.graph.resident_bytes + int(c) for c in cells[1:]]
        return cls(search, polish, blocks, found, cells, bounds.extras_at(problem.graph, problem.weights, tops), {})

    def look_closer(self, problem: Problem) -> list[Entry]:
        """The entries, with what a closer look adds at every stretch that may hold a better answer.

        A stretch below the best answer so far is left out only if it is certified that nothing in it serves better. So
        what answers one goal is also seen where a larger budget, or more overhead, asks. Asked for the whole frontier it
        looks at the lowest stretch, where the sweep falls shortest: a look at all takes ten times as long as the sweep.
        """
        found = self.entries
        if problem.coarse or not len(self.search.reduced.candidates):
            return found
        tell = _teller(problem)
        tell(found)
        for k in range(len(self.cells) - 2, -1, -1):
            if problem.time_left <= 0:
                break
            if self._may_help(problem, choose(problem, found)[0], k):
                found = pareto(found + self._look(replace(problem, whole=False), k))
                tell(found)
        return found

    def _may_help(self, problem: Problem, best: Entry, k: int) -> bool:
        if problem.limit is not None:
            room = problem.limit - problem.graph.resident_bytes
            return self._begin(k) <= room and (best.peak > room or self.least_extra[k] < best.extra)
        if problem.max_overhead is not None:
            # The stretch that begins at the best peak too: what is as small may cost less.
            return self._begin(k) <= best.peak and self.least_extra[k] <= problem.max_overhead * problem.base_cost
        return k == 0

    def _begin(self, k: int) -> float:
        """The least peak of a stretch; the lowest one has none: a closer look may find what is smaller."""
        return float(self.cells[k]) if k else 0.0

    def _look(self, problem: Problem, k: int) -> list[Entry]:
        if k not in self.looked_at:
            low, high = float(self.cells[k]), float(self.cells[k + 1])
            search, polish = self.search.copy(problem), self.polish.copy(problem)
            unpolished = polish
            seeds: list[Entry] = []
            with problem.interruptible():
                rooms = np.geomspace(low, high, (2 if large(problem) else LIMITS) + 1)[1:]
                seeds += proposals.all_of(
                    problem, [partial(proposals.joined, problem, curve, rooms) for curve in self.blocks]
                )
                if k == 0:
                    smallest = replace(problem, limit=None, max_overhead=None)
                    seeds += proposals.all_of(problem, [partial(entries, smallest, curve) for curve in self.blocks])
                    low = min([low, *(float(e.peak) for e in seeds)])
                polish.enter([search.reduced.reduced_runs(e.runs) for e in seeds])
                search.look(low, high)
                polish.enter([e.runs for e in search.entries()])
                unpolished = polish.copy(problem)
                polish.look(low, high)
            found = pareto(polish.entries() + seeds)
            if not large(problem):
                found = _pressed(problem, self._within(found, low, high))
            if k == 0 and problem.time_left > 0:
                found = pareto(found + self._anew(problem, unpolished, low, high))
            if not large(problem):
                proven = small.proven_between(problem, self._begin(k), high, found)
                found = proven if proven is found else _pressed(problem, proven)
            if problem.time_left <= 0:
                return found
            self.looked_at[k] = found
        return self.looked_at[k]

    def _anew(self, problem: Problem, unpolished: Polish, low: float, high: float) -> list[Entry]:
        """What searches that begin anew find at the lowest stretch, each group of them polished apart: joined with the
        rest, it takes its place and its effort."""
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
        """What was found, with what was known, less what is known of other stretches."""
        elsewhere = {e.peak for e in self.entries if not low <= e.peak <= high}
        return [e for e in pareto(found + self.entries) if e.peak not in elsewhere]


def _pressed(problem: Problem, found: list[Entry]) -> list[Entry]:
    """What was found, with the least values looked at too, which the search leaves out."""
    fine = Polish(problem, Reduced(problem.graph, Dropping(problem.graph), negligible=0.0))
    with problem.interruptible():
        found = pareto(found + fine.press(found))
    return found


def _teller(problem: Problem) -> Callable[[list[Entry]], None]:
    """Says what the incumbent is, and how far from the certified bound."""
    g, w = problem.graph, problem.weights
    least_extra, least_peak = 0.0, bounds.single_op(g).bytes
    if problem.limit is not None:
        least_extra = bounds.extras_at(g, w, [problem.limit])[0]
    elif problem.max_overhead is not None:
        least_peak = bounds.at_overhead(g, w, problem.max_overhead).bytes

    def tell(found: list[Entry]) -> None:
        best = choose(problem, found)[0]
        peak, once = best.peak + g.resident_bytes, problem.base_cost or 1.0
        what = f"auto: {format_bytes(peak)} at +{best.extra / once:.2%}; "
        if problem.limit is not None and peak <= problem.limit:
            problem.progress(what + f"certified: no plan within the budget below +{least_extra / once:.2%}")
        else:
            problem.progress(
                what + f"certified: none below {format_bytes(least_peak)}, gap {1 - least_peak / peak:.1%}"
            )

    return tell
