"""The best of the bounds within a time allowance."""

from __future__ import annotations

import numpy as np

from ..graph import Graph
from ..solvers import exact
from .base import Bound, single_op
from .staged import staged
from .waiting import at_overhead, extra_at

SEARCHED = 100_000  # sets of values that the search looks at, per second allowed
LINEAR = 600  # graphs of at most so many ops get the linear program


def best(graph: Graph, weights: np.ndarray, overhead: float, seconds: float = 1.0, upper: int | None = None) -> Bound:
    """The best bound on the peak of every schedule whose extra cost is at most `overhead`.

    seconds : about how long it may take; work is counted, not timed, so the answer is the same on every machine.
    upper : the peak of a schedule within that cost, where one is known: nothing is done beyond proving it best.
    """
    found = at_overhead(graph, weights, overhead)
    if upper is not None and found.bytes >= upper or seconds <= 0:
        return found
    if exact.fits(graph):
        nodes = int(SEARCHED * seconds)
        peak = exact.least_peak_bound(graph, weights, overhead, nodes, upper)
        if peak > found.bytes:
            found = Bound(peak, found.op)
    elif int(graph.needed.sum()) <= LINEAR * seconds:
        peak_by_stages = staged(graph, weights, overhead, stages=12)
        found = max(found, peak_by_stages, key=lambda b: b.bytes)
    return found


def time_at(graph: Graph, weights: np.ndarray, peak: int, seconds: float = 0.0) -> float:
    """The least extra cost, in the unit of `weights`, of a schedule with that peak (resident included), as far as it is
    certified; infinite where no schedule has it. seconds : about how long a search on a small graph may take."""
    found = extra_at(graph, weights, peak)
    if seconds > 0 and peak >= single_op(graph).bytes and exact.fits(graph):
        once = float(weights[graph.needed].sum())
        searched = exact.solve(graph, weights, limit=peak, nodes=max(1, int(SEARCHED * seconds)))
        found = max(found, searched.cost_bound - once * (1 + 1e-9))
    return found
