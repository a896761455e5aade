"""Least cost within a peak, or least peak within a cost, of a small graph: exact.

The model is the needed-set view of pebbling with recomputation: read backwards, a schedule is a path over the sets of
values that the future needs (exact/needed.py). Least peak is a bottleneck shortest path (Dijkstra), least cost
within a peak is a shortest path found by A* (Hart, Nilsson, Raphael, 1968). Its estimate counts every op that must still
run, and the least cost of recomputing the values that cannot wait in memory when one of a few ops first runs, with all
that the recomputation needs in turn (see kernels/watch.py).

Problem: the goal itself, on the whole step: any order of the ops, any number of runs, workspace, ops of several
outputs, ops that may run only once, writing in place.

Optimality: least cost among all schedules that the judge accepts and that stay within `limit`; least peak among those
within `max_overhead`; least peak of all with neither, and then least cost at that peak. The claim holds where the search
ends by itself and no op may write over what the boundary reads or makes (traced graphs never allow it; the schedules
given here never do it). A search that is cut short gives a certified bound, from the labels still open.

Complexity: exponential; about 10^5 sets a second. Graphs of more than 128 needed ops, or values that something reads,
are declined (`fits`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..kernels import needed as kernel
from ..model.graph import Graph
from ..model.judge import simulate
from ..model.schedule import Schedule
from ..saying.shares import EPS
from .labels import LabelSearch
from .needed import MOST, Needed

MOST_SETS = 1_000_000  # labels expanded before the search gives up: about 10 s
# One model for each: the least values that together hold at most this share of all bytes count as nothing in it. The last
# share is 0, for the truth; the others are guesses.
NEGLIGIBLE_SHARES = (0.01, 0.001, 0.0)
PEAKS_ASKED = 6  # peaks asked about when the least peak is bounded; a guess


@dataclass(frozen=True)
class Solution:
    """The answer of a search.

    schedule : the best found, or None.
    peak_bound : no schedule within `max_cost` holds fewer bytes, resident ones included.
    cost_bound : no schedule within `limit` costs less; infinite where no schedule fits.
    proven : the bound is reached.
    nodes : labels expanded.
    """

    schedule: Schedule | None
    peak_bound: int
    cost_bound: float
    proven: bool
    nodes: int = 0


def fits(graph: Graph) -> bool:
    """Whether the graph is small enough to be searched."""
    if int(graph.needed.sum()) > MOST:
        return False
    read = {v for i in np.flatnonzero(graph.needed) for v in graph.ops[i].inputs} | set(graph.keep)
    return sum(bool(graph.arrays.producer[v] >= 0) for v in read) <= MOST


def solve(
    graph: Graph,
    weights: np.ndarray,
    limit: int | None = None,
    max_cost: float | None = None,
    nodes: int = MOST_SETS,
    deadline: float | None = None,
    safe: bool = False,
) -> Solution:
    """Least cost within `limit` (bytes, resident included) and `max_cost`; without a limit, least peak within
    `max_cost`. The graph must fit.

    nodes : labels expanded at most. deadline : `time.monotonic()` at which to stop.
    safe : writes over nothing that the caller may hold; else wherever the judge allows it.
    """
    once = float(weights[graph.needed].sum())
    slack = np.inf if max_cost is None else max_cost - once + EPS * once
    result = Solution(None, 0, once, False)
    # Small values make a search long and hardly matter. Each model bounds the next one, and the last one is exact.
    models = _models(graph, weights, safe)
    for model in models:
        found = _search(model, limit, slack, nodes, deadline)
        nodes -= found.nodes
        result = _better(graph, weights, result, found, limit)
        if limit is not None and found.schedule is not None and model is models[-2]:
            over = simulate(graph, found.schedule).peak_bytes - limit
            if over > 0:  # here small values do matter: with them the schedule holds too much
                lower = _search(model, limit - over, slack, nodes, deadline)
                nodes -= lower.nodes
                if lower.schedule is not None:
                    result = _better(graph, weights, result, replace(lower, peak_bound=0, cost_bound=0.0), limit)
        if result.proven or not found.proven:
            break
    return result


def _models(graph: Graph, weights: np.ndarray, safe: bool = False) -> list[Needed]:
    """Models of the graph, from the one that leaves out most values to the exact one."""
    coarse, fine, whole = (Needed(graph, weights, safe, drop) for drop in NEGLIGIBLE_SHARES)
    same = np.array_equal(coarse.size * coarse.unit, fine.size * fine.unit)
    return [fine, whole] if same else [coarse, fine, whole]


def least_peak(graph: Graph, weights: np.ndarray, overhead: float, nodes: int, upper: int | None = None) -> Solution:
    """A certified bound on the peak within an extra cost, and the smallest schedule met on the way, or None. It writes
    over nothing that the caller may hold.

    Three labels of four go into the search for the least peak, the rest into questions whether any schedule stays
    within a given peak; `upper` is known to be reached.
    """
    once = float(weights[graph.needed].sum())
    slack = once * (max(0.0, overhead) + EPS)
    top = simulate(graph, Schedule.baseline(graph)).peak_bytes if upper is None else upper
    bound, met = 0, []
    for model in _models(graph, weights):
        found = _search(model, None, slack, max(1, 3 * nodes // 4), None)
        nodes -= found.nodes
        bound = max(bound, found.peak_bound)
        met.append(found.schedule)
        if not found.proven and bound < top:  # finer models are even harder
            asked = _asked(model, slack, nodes, bound, top)
            bound = asked.peak_bound
            met.append(asked.schedule)
        if not found.proven or bound >= top:
            break
    safe = [Schedule.from_runs(graph, s.runs, "exact") for s in met if s is not None]
    peaks = [simulate(graph, s).peak_bytes for s in safe]
    smallest = safe[int(np.argmin(peaks))] if safe else None
    return Solution(smallest, bound, once, bool(safe) and min(peaks) <= bound)


def _asked(model: Needed, slack: float, nodes: int, low: int, high: int) -> Solution:
    """A bound on the least peak between `low` and `high`, by halving: does any schedule stay within a peak?"""
    graph, unit = model.graph, model.unit
    least, most = graph.beside_resident(low) // unit, -(-graph.beside_resident(high) // unit)
    probe, schedule = most - 1, None
    for _ in range(PEAKS_ASKED):
        if least >= most:
            break
        answer = _search(model, graph.with_resident(probe * unit), slack, max(1, nodes // PEAKS_ASKED), None)
        schedule = answer.schedule or schedule
        if answer.proven and answer.schedule is None:
            least = probe + 1
        else:
            most = probe
        probe = (least + most - 1) // 2
    return Solution(schedule, max(low, min(high, graph.with_resident(least * unit))), 0.0, False)


def _search(model: Needed, limit: int | None, slack: float, nodes: int, deadline: float | None) -> Solution:
    once, graph = float(model.cost.sum()), model.graph
    floor = max([model.held(model.start)] + [model.own(k) for k in range(len(model.ops))])
    least = graph.with_resident(floor * model.unit)
    if limit is not None and limit < least or slack < 0:
        return Solution(None, least, np.inf, True)
    search = LabelSearch(model, floor, None if limit is None else graph.beside_resident(limit) // model.unit, slack)
    status, bound, runs = search.run(nodes, deadline)
    schedule = None if runs is None else model.schedule(runs, "exact")
    looked = int(search.state[kernel.EXPANDED])
    ended = status in (kernel.GOAL, kernel.EMPTY)
    if limit is None:
        return Solution(schedule, graph.with_resident(int(min(bound * model.unit, 2**62))), once, ended, looked)
    return Solution(schedule, least, once + bound, ended, looked)


def _better(graph: Graph, weights: np.ndarray, one: Solution, two: Solution, limit: int | None) -> Solution:
    """Two solutions of the same question as one: the better schedule by the judge, and the higher bounds."""
    peak_bound, cost_bound = max(one.peak_bound, two.peak_bound), max(one.cost_bound, two.cost_bound)
    if two.schedule is None and two.proven:
        return Solution(None, peak_bound, cost_bound, True)
    best: tuple[float, float] = (np.inf, np.inf)
    schedule = None
    for s in (one.schedule, two.schedule):
        if s is None:
            continue
        judged = simulate(graph, s)
        cost = float(judged.runs @ weights)
        if limit is not None and judged.peak_bytes <= limit:
            figure = cost, float(judged.peak_bytes)
        elif limit is None:
            figure = float(judged.peak_bytes), cost
        else:
            continue
        if figure < best:
            best, schedule = figure, s
    proven = best[0] <= (peak_bound if limit is None else cost_bound * (1 + EPS))
    return Solution(schedule, peak_bound, cost_bound, proven)
