"""Answers of the exact search for `auto`: whole answers on the smallest graphs, better points of the curve on small ones."""

from __future__ import annotations

from math import gcd

import numpy as np

from ..exact.search import Solution, fits
from ..exact.search import solve as solve_exactly
from ..model.judge import plain_activation_bytes, simulate
from ..model.schedule import Schedule
from ..problem import Problem
from ..structure.archive import Entry, entry, pareto
from .running import in_threads

NO_DEARER = 1 + 1e-12  # a limit on cost that rounding does not break


# How far the exact search is asked. A node is a set of values that it looks at. `CLOSER_NODES` was measured: a few seconds on a
# chain, where a set leads to many others; the other numbers are guesses.
ANSWERED_MOST_OPS = 40  # the most needed ops of a graph that is answered exactly
ANSWERED_MOST_NODES = 20_000  # an answer that takes more nodes is not looked for
MOST_POINTS = 64  # of a whole curve that is answered exactly
CLOSER_NODES = 40_000  # nodes looked at for one peak of a larger graph
PEAKS = 40  # how many peaks are asked about, from the plain one down to none
MOST_FAILURES = 4  # in a stretch of the curve; then the rest of it is left
BETTER_SHARE = 1e-4  # of the extra cost; the least that an answer must save


def proven(problem: Problem) -> list[Schedule]:
    """The schedules that the exact search proves best within few nodes; empty where it does not."""
    g = problem.graph
    if not fits(g) or int(g.needed.sum()) > ANSWERED_MOST_OPS:
        return []
    if problem.whole:
        return _curve(problem)
    if problem.limit is None:
        most = None if problem.max_overhead is None else problem.base_cost * (1 + problem.max_overhead)
        one = _least(problem, most)
    else:
        one = _solve(problem, problem.limit, None)
        if one is not None:  # of the schedules that are no dearer, the smallest
            one = _solve(problem, None, float(problem.weights[one.runs].sum()) * NO_DEARER) or one
    return [one] if one else []


def _solve(problem: Problem, limit: int | None, max_cost: float | None) -> Schedule | None:
    """The best schedule within a limit in bytes or a cost, or None where that is not proven in few nodes."""
    g = problem.graph
    nodes = ANSWERED_MOST_NODES
    found = solve_exactly(g, problem.weights, limit, max_cost, nodes, problem.deadline, safe=True)
    if not found.proven or found.schedule is None:
        return None
    return Schedule.from_runs(g, found.schedule.runs, "auto")


def _least(problem: Problem, max_cost: float | None) -> Schedule | None:
    """Of the schedules of least peak within a cost, the cheapest."""
    small = _solve(problem, None, max_cost)
    return small and _solve(problem, simulate(problem.graph, small).peak_bytes, None)


def _curve(problem: Problem) -> list[Schedule]:
    """The whole frontier, from the plain step's cost to the least peak; empty where a part of it is not proven."""
    g, w = problem.graph, problem.weights
    found: list[Schedule] = []
    smallest = _least(problem, None)
    if smallest is None:
        return []
    goal, peak = simulate(g, smallest).peak_bytes, -1
    cost = problem.base_cost
    while peak != goal and len(found) < MOST_POINTS:
        one = _least(problem, cost * NO_DEARER)
        if one is None:
            return []
        peak = simulate(g, one).peak_bytes
        found.append(one)
        if peak > goal:  # the cost of the next smaller peak
            cheaper = _solve(problem, peak - 1, None)
            if cheaper is None:
                return []
            cost = float(w[cheaper.runs].sum())
    return found


def proven_between(problem: Problem, low: float, high: float, found: list[Entry]) -> list[Entry]:
    """`found`, with entries that are proven best at some peaks from `low` to `high` (bytes without the resident ones).

    The peaks do not depend on the goal: an answer to one goal is also seen where a larger budget, or more overhead, asks.
    """
    g, w = problem.graph, problem.weights
    if not fits(g):
        return found
    plain = plain_activation_bytes(g)
    steps = PEAKS
    rounded = sorted(range(1, steps + 1), key=lambda k: (-gcd(k, steps), -k))  # halves first: what people ask for
    peaks = [p for p in (plain * k // steps for k in rounded) if low <= p <= high]

    def solve(peak: int, best: float) -> Solution:
        most = None if best == np.inf else problem.base_cost + best * (1 - BETTER_SHARE)
        nodes = int(CLOSER_NODES * problem.work)
        return solve_exactly(g, w, g.with_resident(peak), most, nodes, problem.deadline, safe=True)

    failed = 0
    least: list[tuple[int, float]] = []  # no schedule of that peak costs less
    while peaks and failed < MOST_FAILURES and problem.time_left > 0:
        asked, peaks = peaks[:2], peaks[2:]
        pair = [(p, min((e.extra for e in found if e.peak <= p), default=np.inf)) for p in asked]
        pair = [(p, best) for p, best in pair if best > 0 and not any(p <= q and best <= x for q, x in least)]
        for (p, best), one in zip(pair, in_threads(problem, solve, pair), strict=True):
            if not one.proven:
                failed += 1
                peaks = [q for q in peaks if q > p]  # a smaller peak is harder yet
            if one.proven and one.schedule is None:
                least.append((p, best))
            if one.schedule is not None:
                found = pareto([*found, entry(g, w, one.schedule.runs)])
    return found
