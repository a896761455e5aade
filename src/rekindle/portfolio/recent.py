"""The curves found last, kept in memory: the next goal for the same graph is answered at once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ..problem import Problem

T = TypeVar("T")
CURVES_MOST = 4  # a guess
_curves: OrderedDict[tuple[Any, ...], Any] = OrderedDict()


def curve(problem: Problem, find: Callable[[], T]) -> T:
    """A curve of the problem's graph, from memory if it was found before with the same weights, seed and effort.

    find : makes the curve; one that a deadline cut short is not kept.
    """
    g = problem.graph
    costs = [a.tobytes() for a in (problem.weights, g.weights("seconds"), g.arrays.workspace)]
    key = (g.hash, *costs, problem.seed, problem.effort, problem.work)
    if key in _curves:
        _curves.move_to_end(key)
        found: T = _curves[key]
        return found
    found = find()
    if problem.time_left > 0:
        _curves[key] = found
        while len(_curves) > CURVES_MOST:
            _curves.popitem(last=False)
    return found


def known_runs(graph_hash: str) -> list[np.ndarray]:
    """Sequences of runs over the curves of a graph that are kept; each curve has the entries `everything`."""
    return [e.runs for key, found in _curves.items() if key[0] == graph_hash for e in found.everything]


def forget() -> None:
    """Keep no curve."""
    _curves.clear()
