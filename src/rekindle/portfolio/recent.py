"""The curves found last, kept in memory: the next goal for the same graph is answered at once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ..problem import Problem

T = TypeVar("T")
KEPT_MOST = 4  # of each kind; a guess
_curves: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
_ways_down: OrderedDict[tuple[Any, ...], Any] = OrderedDict()


def curve(problem: Problem, find: Callable[[], T]) -> T:
    """A curve of the problem's graph, from memory if it was found before with the same weights, seed and effort.

    find : makes the curve; one that a deadline cut short is not kept.
    """
    costs = _key(problem, problem.weights, problem.graph.weights("seconds"))
    key = (*costs, problem.effort, problem.work, problem.plain_bytes)
    if key in _curves:
        _curves.move_to_end(key)
        found: T = _curves[key]
        return found
    return _keep(_curves, key, problem, find())


def way_down(problem: Problem, go: Callable[[T | None], T]) -> T:
    """The way down of the problem's graph, gone further: the same one for all weights and efforts.

    go : goes on from what is kept, or from the beginning; a way that a deadline cut short is not kept.
    """
    key = _key(problem, problem.graph.weights("flops"))
    return _keep(_ways_down, key, problem, go(_ways_down.pop(key, None)))


def _key(problem: Problem, *costs: np.ndarray) -> tuple[Any, ...]:
    g = problem.graph
    return (g.hash, *(a.tobytes() for a in (*costs, g.arrays.workspace)), problem.seed)


def _keep(kept: OrderedDict[tuple[Any, ...], Any], key: tuple[Any, ...], problem: Problem, found: T) -> T:
    if problem.time_left > 0:
        kept[key] = found
        while len(kept) > KEPT_MOST:
            kept.popitem(last=False)
    return found


def known_runs(graph_hash: str) -> list[np.ndarray]:
    """Sequences of runs over the curves of a graph that are kept; each curve has the entries `everything`."""
    return [e.runs for key, found in _curves.items() if key[0] == graph_hash for e in found.everything]


def forget() -> None:
    """Keep no curve, and no way down."""
    _curves.clear()
    _ways_down.clear()
