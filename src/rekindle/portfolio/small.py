"""What `auto` takes from the exact search: whole answers on the smallest graphs, better points of the curve on small ones."""

from __future__ import annotations

from math import gcd

import numpy as np

from ..exact import search as exact
from ..model.judge import simulate
from ..model.schedule import Schedule
from ..problem import Problem
from ..structure.archive import Entry, entry, pareto
from .choice import in_threads

SMALL, NODES = 40, 20_000  # ops of graphs that are answered exactly, and sets of values looked at for it
POINTS = 64  # of the curve of such a graph
CLOSER = 40_000  # sets of values looked at for a peak: a few seconds on a chain, where a set leads to many others
STEPS = 40  # peaks asked about, from the plain one down to none
FAILURES = 4  # in a stretch of the curve, until the rest of it is left
BETTER = 1e-4  # of the extra cost an answer must save at least


def proven(problem: Problem) -> list[Schedule]:
    """What the exact search proves best within few steps; empty where it does not."""
    g, w = problem.graph, problem.weights
    if not exact.fits(g) or int(g.needed.sum()) > SMALL:
        return []

    def solve(limit: int | None, max_cost: float | None) -> Schedule | None:
        found = exact.solve(g, w, limit, max_cost, NODES, problem.deadline, safe=True)
        if not found.proven or found.schedule is None:
            return None
        return Schedule.from_runs(g, found.schedule.runs, "auto")

    def least(max_cost: float | None) -> Schedule | None:
        """Of the least peak within a cost, the cheapest."""
        small = solve(None, max_cost)
        return small and solve(simulate(g, small).peak_bytes, None)

    if not problem.whole:
        most = None if problem.max_overhead is None else problem.base_cost * (1 + problem.max_overhead)
        if problem.limit is None:
            one = least(most)
        else:
            one = solve(problem.limit, None)
            one = one and (solve(None, float(w[one.runs].sum()) * (1 + 1e-12)) or one)  # no dearer, and the smallest
        return [one] if one else []
    found: list[Schedule] = []
    smallest = least(None)
    if smallest is None:
        return []
    goal, peak = simulate(g, smallest).peak_bytes, -1
    cost = problem.base_cost
    while peak != goal and len(found) < POINTS:
        one = least(cost * (1 + 1e-12))
        if one is None:
            return []
        peak = simulate(g, one).peak_bytes
        found.append(one)
        if peak > goal:  # what the next smaller peak costs
            cheaper = solve(peak - 1, None)
            if cheaper is None:
                return []
            cost = float(w[cheaper.runs].sum())
    return found


def proven_between(problem: Problem, low: float, high: float, found: list[Entry]) -> list[Entry]:
    """`found`, with what is proven best at some peaks from `low` to `high` (bytes, without resident ones).

    The peaks do not depend on the goal: what answers one is also seen where a larger budget, or more overhead, asks.
    """
    g, w = problem.graph, problem.weights
    if not exact.fits(g):
        return found
    plain = simulate(g, Schedule.baseline(g)).peak_bytes - g.resident_bytes
    rounded = sorted(range(1, STEPS + 1), key=lambda k: (-gcd(k, STEPS), -k))  # halves first: what people ask for
    peaks = [p for p in (plain * k // STEPS for k in rounded) if low <= p <= high]

    def solve(peak: int, best: float) -> exact.Solution:
        most = None if best == np.inf else problem.base_cost + best * (1 - BETTER)
        nodes = int(CLOSER * problem.effort)
        return exact.solve(g, w, g.resident_bytes + peak, most, nodes, problem.deadline, safe=True)

    failed = 0
    least: list[tuple[int, float]] = []  # no schedule of that peak costs less
    while peaks and failed < FAILURES and problem.time_left > 0:
        asked, peaks = peaks[:2], peaks[2:]
        pair = [(p, min((e.extra for e in found if e.peak <= p), default=np.inf)) for p in asked]
        pair = [(p, best) for p, best in pair if best > 0 and not any(p <= q and best <= x for q, x in least)]
        for (p, best), one in zip(pair, in_threads(problem, solve, pair), strict=True):
            if not one.proven:
                failed += 1
                peaks = [q for q in peaks if q > p]  # what holds less is harder yet
            if one.proven and one.schedule is None:
                least.append((p, best))
            if one.schedule is not None:
                found = pareto([*found, entry(g, w, one.schedule.runs)])
    return found
