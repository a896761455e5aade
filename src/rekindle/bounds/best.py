"""The best of the bounds within a time allowance."""

from __future__ import annotations

import numpy as np

from ..exact import search as exact
from ..model.floor import Bound, single_op
from ..model.graph import Graph
from ..saying.shares import EPS
from .ahead import look_ahead
from .lagrange import lagrangian
from .staged import staged, staged_cost
from .waiting import at_overhead, extra_at, most_waiting

# How the time allowance is turned into work; the rates were measured on a small CPU machine.
SETS_PER_S = 100_000  # of values, that the exact search looks at
PROGRAMS_TIMES_OPS_PER_S = 10_000  # linear programs, one per op at whose first run memory is looked at, times all ops
LEAST_PROGRAMS = 2  # solved however large the graph is; a guess
SEVERAL_STAGES = (6, 12)  # of the programs in whole numbers, one program each; guesses
STAGED_MOST_OPS = 500  # larger graphs get no programs of several stages; a guess
LARGE_RELAXED_OPS = 4  # that Lagrangian relaxation looks at on larger graphs; a guess


def best(graph: Graph, weights: np.ndarray, overhead: float, seconds: float = 1.0, upper: int | None = None) -> Bound:
    """The best bound on the peak of every schedule whose extra cost is at most `overhead`.

    seconds : about how long it may take. Work is counted rather than timed as far as possible.
    upper : the peak of a known schedule within that cost, or None: work ends once it is proven best.
    """
    found = at_overhead(graph, weights, overhead)
    for attempt in (_looking_ahead, _at_one_run, _at_several_runs, _by_search):
        if upper is not None and found.bytes >= upper or seconds <= 0:
            break
        found = max(found, attempt(graph, weights, overhead, seconds, upper), key=lambda b: b.bytes)
    return found


def _looking_ahead(graph: Graph, weights: np.ndarray, overhead: float, seconds: float, upper: int | None) -> Bound:
    """A bound that holds at any cost."""
    return look_ahead(graph)


def _at_one_run(graph: Graph, weights: np.ndarray, overhead: float, seconds: float, upper: int | None) -> Bound:
    """One stage: relaxed at the ops where most waits, then in whole numbers at the best of them."""
    large = int(graph.needed.sum()) > STAGED_MOST_OPS
    ops = most_waiting(graph, LARGE_RELAXED_OPS if large else _cuts(graph, seconds))
    relaxed = []
    if large:
        by_op = {v: lagrangian(graph, weights, overhead, v) for v in ops}
        relaxed = list(by_op.values())
        ops = sorted(ops, key=lambda v: -by_op[v].bytes)[: int(PROGRAMS_TIMES_OPS_PER_S * seconds / len(graph.ops))]
    relaxed += [staged(graph, weights, overhead, 1, through=v) for v in ops]
    found = max(relaxed, key=lambda b: b.bytes, default=single_op(graph))
    whole = staged(graph, weights, overhead, 1, True, seconds / 4, found.op)
    return max(found, whole, key=lambda b: b.bytes)


def _cuts(graph: Graph, seconds: float) -> int:
    return max(LEAST_PROGRAMS, int(PROGRAMS_TIMES_OPS_PER_S * seconds / max(1, len(graph.ops))))


def _at_several_runs(graph: Graph, weights: np.ndarray, overhead: float, seconds: float, upper: int | None) -> Bound:
    """Several stages in whole numbers, through the op of `at_overhead`."""
    found = single_op(graph)
    ops = most_waiting(graph, 1)
    if int(graph.needed.sum()) > STAGED_MOST_OPS or not ops:
        return found
    for stages in SEVERAL_STAGES:
        if upper is None or found.bytes < upper:
            more = staged(graph, weights, overhead, stages, True, seconds / 4)
            found = max(found, more, key=lambda b: b.bytes)
    return found


def _by_search(graph: Graph, weights: np.ndarray, overhead: float, seconds: float, upper: int | None) -> Bound:
    """The exact search, on graphs small enough."""
    if not exact.fits(graph):
        return single_op(graph)
    found = exact.least_peak(graph, weights, overhead, max(1, int(SETS_PER_S * seconds)), upper)
    ops = most_waiting(graph, 1)
    return Bound(found.peak_bound, ops[0] if ops else None)


def time_at(graph: Graph, weights: np.ndarray, peak: int, seconds: float = 0.0) -> float:
    """The least extra cost, in the unit of `weights`, of a schedule with that peak (resident included), as far as it is
    certified; infinite where no schedule has it. seconds : about how long it may take beyond the knapsacks."""
    found = extra_at(graph, weights, peak)
    if seconds <= 0 or found == float("inf"):
        return found
    ops = most_waiting(graph, _cuts(graph, seconds / 2))
    relaxed = {v: staged_cost(graph, weights, peak, v, False, seconds) for v in ops}
    if relaxed:
        at = max(relaxed, key=lambda v: relaxed[v])
        found = max(found, relaxed[at], staged_cost(graph, weights, peak, at, True, seconds / 4))
    if exact.fits(graph):
        once = float(weights[graph.needed].sum())
        searched = exact.solve(graph, weights, limit=peak, nodes=max(1, int(SETS_PER_S * seconds / 2)))
        found = max(found, searched.cost_bound - once * (1 + EPS))
    return found
