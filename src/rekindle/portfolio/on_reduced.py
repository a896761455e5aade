"""Between a problem and its reduced problem: the costs that a search sees, and entries over the whole graph."""

from __future__ import annotations

import numpy as np

from ..problem import Problem
from ..structure.archive import Entry, entry, pareto
from ..structure.reduced import Reduced

SECONDS_SHARE = 1e-3  # of the cost, added in proportion to seconds
COUNT_SHARE = 1e-5  # of the cost, added evenly over all ops


def search_weights(problem: Problem, reduced: Reduced) -> np.ndarray:
    """float64 [ops of the reduced problem]: the cost of each op, with a trace of its seconds and of the number of ops, so
    that ops that cost nothing are not run in vain."""
    w = problem.weights.astype(np.float64)[reduced.ops]
    total = float(w.sum()) or 1.0
    seconds = problem.graph.weights("seconds")[reduced.ops]
    s = float(seconds.sum())
    trace = SECONDS_SHARE * total / s * seconds if s > 0 else 0.0
    return w + trace + COUNT_SHARE * total / max(1, len(reduced.ops))


def over_whole_graph(problem: Problem, reduced: Reduced, entries: list[Entry]) -> list[Entry]:
    """Entries of the reduced problem as entries of the whole graph, with their true peaks and costs. Dominated entries are
    left out, the plain step is added."""
    plain = np.flatnonzero(problem.graph.needed)
    whole = [plain, *(reduced.whole_runs(e.runs) for e in entries)]
    return pareto([entry(problem.graph, problem.weights, runs) for runs in whole])
