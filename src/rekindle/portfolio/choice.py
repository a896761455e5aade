"""Helpers of the searches that find a whole frontier: threads, weights, and the way back to the whole graph."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from ..problem import Problem
from ..structure.archive import Entry, entry, pareto
from ..structure.reduced import Reduced

T = TypeVar("T")


def in_threads(problem: Problem, work: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> Iterator[T]:
    """`work` for each row of arguments, two at a time; the results in order. An interruption ends the waiting: what is
    under way is told by `problem.time_left`, and what it has found still comes."""
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        waiting = [pool.submit(work, *row) for row in arguments]
        for one in waiting:
            while True:
                with problem.interruptible():
                    result = one.result()
                    break
            yield result


def search_weights(problem: Problem, reduced: Reduced) -> np.ndarray:
    """float64 [ops of the reduced problem]: the cost of each, with a trace of its seconds and a count, so that what is
    free is not done in vain."""
    w = problem.weights.astype(np.float64)[reduced.ops]
    total = float(w.sum()) or 1.0
    seconds = problem.graph.weights("seconds")[reduced.ops]
    s = float(seconds.sum())
    return w + (1e-3 * total / s * seconds if s > 0 else 0.0) + 1e-5 * total / max(1, len(reduced.ops))


def over_whole_graph(problem: Problem, reduced: Reduced, entries: list[Entry]) -> list[Entry]:
    """Entries of the reduced problem over the whole graph, with their true peaks and costs; dominated ones left out, the
    plain step put in."""
    plain = np.flatnonzero(problem.graph.needed)
    whole = [plain, *(reduced.whole_runs(e.runs) for e in entries)]
    return pareto([entry(problem.graph, problem.weights, runs) for runs in whole])
