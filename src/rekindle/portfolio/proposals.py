"""What fast solvers and blocks propose to `auto`: entries to start from.

Here: which solvers are asked, by the size of the graph, and how: two at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ..problem import Problem, Solve
from ..solvers.beam import beam
from ..solvers.chen_recursive import chen_recursive
from ..solvers.chen_sqrt import chen_sqrt
from ..solvers.dtr import dtr
from ..solvers.feng import feng
from ..solvers.hong_exact import hong_exact
from ..solvers.kusumoto import kusumoto
from ..solvers.min_cut import min_cut
from ..solvers.revolve import revolve
from ..solvers.rotor import entries, rotor
from ..structure.archive import Entry, entry
from ..structure.chain import chain_of
from ..structure.forward import forward_dag
from .choice import in_threads
from .hierarchical import SIZES, Levels, curves, hierarchical
from .storages import storages

Source = Callable[[], Iterator[Entry]]

# The solvers that are asked for proposals, by name.
ASKED: dict[str, Solve] = {
    "beam": beam,
    "chen-recursive": chen_recursive,
    "chen-sqrt": chen_sqrt,
    "dtr": dtr,
    "feng": feng,
    "hierarchical": hierarchical,
    "hong-exact": hong_exact,
    "kusumoto": kusumoto,
    "min-cut": min_cut,
    "revolve": revolve,
    "rotor": rotor,
    "storages": storages,
}

SEEDS = ("min-cut", "feng", "hong-exact")
SEEDS_OF_SMALLER = ("chen-sqrt", "kusumoto")  # of graphs that are not large
SEEDS_BY_TABLE, TABLE = ("rotor",), 400  # on chains of at most so many stages: it takes O(n^2) tables
SEEDS_OF_LONG, LONG = ("chen-sqrt", "chen-recursive", "revolve"), 100  # on chains of more stages: many levels
LARGE = 3500  # ops


def large(problem: Problem) -> bool:
    """Whether even fast solvers take their time: then only those that matter most are asked."""
    return len(problem.graph.ops) > LARGE


def blocks_of(problem: Problem) -> Iterator[Levels]:
    """The graph as chains of blocks of different size."""
    forward = forward_dag(problem.graph)
    if forward is not None and problem.time_left > 0:
        for curve in curves(problem.graph, problem.weights, forward, SIZES[1:] if large(problem) else SIZES):
            yield curve
            if problem.time_left <= 0:
                return


def seeds(problem: Problem, blocks: list[Levels]) -> list[Entry]:
    """What the fast solvers propose."""
    any_goal = replace(problem, limit=None, max_overhead=None, whole=True)
    chain = chain_of(problem.graph)
    stages = 0 if chain is None else chain.turn
    names = [*SEEDS]
    names += [] if large(problem) else SEEDS_OF_SMALLER
    names += SEEDS_BY_TABLE if stages <= TABLE else ()
    names += SEEDS_OF_LONG if stages > LONG else ()
    from_blocks = [partial(entries, any_goal, curve) for curve in blocks]
    return all_of(problem, [*from_blocks, *(partial(proposed, any_goal, name) for name in dict.fromkeys(names))])


def proposed(problem: Problem, name: str, weights: np.ndarray | None = None) -> Iterator[Entry]:
    """What a solver finds; weights : float64 [ops], what it is told that ops cost, where that is not what they do."""
    told = problem if weights is None else replace(problem, weights=weights)
    for schedule in ASKED[name](told):
        yield entry(problem.graph, problem.weights, schedule.runs)


def joined(problem: Problem, curve: Levels, rooms: np.ndarray) -> Iterator[Entry]:
    """What blocks give within each of several peaks, without resident bytes."""
    for room in rooms:
        if problem.time_left <= 0:
            return
        limit = problem.graph.resident_bytes + int(room)
        yield from entries(replace(problem, limit=limit, max_overhead=None), curve)


def all_of(problem: Problem, sources: Sequence[Source]) -> list[Entry]:
    """What all sources give, in their order; two are asked at a time, while time is left."""

    def one(source: Source) -> list[Entry]:
        return list(source()) if problem.time_left > 0 else []

    return [e for found in in_threads(problem, one, [(source,) for source in sources]) for e in found]
