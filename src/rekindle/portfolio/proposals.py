"""Entries that fast solvers and blocks propose to `auto`: which solvers are asked, by the size of the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ..model.graph import Graph
from ..model.schedule import Schedule
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
from . import small
from .hierarchical import BLOCK_OPS, Levels, curves, hierarchical
from .running import in_threads
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


# Which solvers propose schedules for which graphs. The sizes are guesses, but for those of small peaks (see below).
BRIEF = ("min-cut",)  # asked with less effort than "thorough": each further one is compiled, and gains next to nothing
THOROUGH = ("min-cut", "feng", "hong-exact")  # asked with effort "thorough"
THOROUGH_NOT_LARGE = ("chen-sqrt", "kusumoto")  # asked with effort "thorough" too, except on large graphs
BY_TABLE = ("rotor",)  # tables that grow with the square of the number of stages
LONG = ("chen-sqrt", "chen-recursive", "revolve")  # for long chains: these solvers recompute in many levels
LARGE_OPS = 3500  # on graphs of more ops even fast solvers take their time: only the most useful ones are asked
FEW_OPS = 1500  # on graphs of up to so many ops slower solvers are asked too
BY_TABLE_MOST_STAGES = 400  # on chains of more stages no tables are made
LONG_STAGES = 100  # chains of more stages are long
# Which solvers reach small peaks soon: on few ops, on chains that are not long, and everywhere. Measured on one core: all
# together take 0.2 s at most on traced models of 217, 343 and 566 ops, and 0.4 s on one of 2,395; on a chain of 200 stages
# `rotor` alone takes 1.8 s, on one of 500 `hong-exact` 1.0 s, and on one of 1,500 `revolve` 0.7 s.
SMALL_ON_FEW_OPS = ("dtr",)
SMALL_ON_SHORT_CHAINS = ("rotor", "hong-exact")
SMALL = ("revolve", "chen-recursive", "feng", "min-cut")


def large(problem: Problem) -> bool:
    """Whether even fast solvers take their time, so that only the most useful ones are asked, and no entry is pressed."""
    return len(problem.graph.ops) > LARGE_OPS


def asked(graph: Graph, effort: str) -> tuple[str, ...]:
    """Names of the solvers that are asked for seeds of the whole curve."""
    chain = chain_of(graph)
    stages = 0 if chain is None else chain.turn
    names = [*BRIEF]
    if effort == "thorough":
        names = [*THOROUGH, *(() if len(graph.ops) > LARGE_OPS else THOROUGH_NOT_LARGE)]
    names += BY_TABLE if stages <= BY_TABLE_MOST_STAGES else ()
    names += LONG if stages > LONG_STAGES else ()
    return tuple(dict.fromkeys(names))


def small_plans(problem: Problem) -> Iterator[Schedule]:
    """The least peaks that fast solvers reach within a fraction of a second, and a few cheaper schedules, for errors that name
    what is reachable; on the smallest graphs the proven least too.

    On smaller graphs `dtr` and `rotor` reach the smallest peaks, `revolve` and `chen-recursive` on long chains, all at a high
    cost. The others give cheaper schedules that take more memory. No clock decides: the same graph gives the same schedules.
    """
    brief = replace(problem, limit=None, max_overhead=None)
    yield Schedule.baseline(problem.graph, "auto")
    yield from small.proven(brief)
    chain = chain_of(problem.graph)
    names = [*SMALL_ON_FEW_OPS] if len(problem.graph.ops) <= FEW_OPS else []
    names += SMALL_ON_SHORT_CHAINS if chain is not None and chain.turn <= LONG_STAGES else ()
    for name in (*names, *SMALL):
        if problem.time_left <= 0:
            return
        yield from ASKED[name](replace(brief, whole=True))


def blocks_of(problem: Problem) -> Iterator[Levels]:
    """The graph as chains of blocks of different sizes."""
    forward = forward_dag(problem.graph)
    if forward is not None and problem.time_left > 0:
        block_ops = BLOCK_OPS[1:] if large(problem) else BLOCK_OPS
        for curve in curves(problem.graph, problem.weights, forward, block_ops):
            yield curve
            if problem.time_left <= 0:
                return


def seeds(problem: Problem, blocks: list[Levels]) -> list[Entry]:
    """The entries that blocks and fast solvers propose for any goal."""
    any_goal = replace(problem, limit=None, max_overhead=None, whole=True)
    names = asked(problem.graph, problem.effort)
    from_blocks = [partial(entries, any_goal, curve) for curve in blocks]
    return all_of(problem, [*from_blocks, *(partial(proposed, any_goal, name) for name in names)])


def proposed(problem: Problem, name: str, weights: np.ndarray | None = None) -> Iterator[Entry]:
    """The entries that a solver finds.

    weights : float64 [ops]; costs shown to the solver in place of the true ones.
    """
    shown = problem if weights is None else replace(problem, weights=weights)
    for schedule in ASKED[name](shown):
        yield entry(problem.graph, problem.weights, schedule.runs)


def joined(problem: Problem, curve: Levels, peaks: np.ndarray) -> Iterator[Entry]:
    """The entries that joined blocks give within each of several peaks, in bytes without the resident ones."""
    for peak in peaks:
        if problem.time_left <= 0:
            return
        yield from entries(problem.within(peak), curve)


def all_of(problem: Problem, sources: Sequence[Source]) -> list[Entry]:
    """The entries of all sources, in the order of the sources; two are asked at a time, while time is left."""

    def one(source: Source) -> list[Entry]:
        return list(source()) if problem.time_left > 0 else []

    return [e for found in in_threads(problem, one, [(source,) for source in sources]) for e in found]
