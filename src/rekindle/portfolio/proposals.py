"""Entries that fast solvers and blocks propose to `auto`: which solvers are asked, by the size of the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..model.graph import Graph
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
from .hierarchical import SETTINGS as HIERARCHICAL
from .hierarchical import Levels, curves, hierarchical
from .storages import storages
from .threads import in_threads

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


@dataclass(frozen=True)
class ProposalSettings:
    """Which solvers propose schedules for which graphs. The sizes are guesses.

    brief : solvers that are asked whatever the effort is: each further one is compiled, and gains next to nothing.
    always : solvers that are always asked with effort "thorough".
    large_ops : on graphs with more ops even fast solvers take their time: only the most useful ones are asked.
    not_large : asked beside them on other graphs.
    by_table : solvers whose tables grow with the square of the number of stages,
    by_table_stages_most : asked on chains of at most so many stages.
    long : solvers that recompute in many levels,
    long_stages : asked on chains of more stages than that.
    """

    brief: tuple[str, ...] = ("min-cut",)
    always: tuple[str, ...] = ("min-cut", "feng", "hong-exact")
    large_ops: int = 3500
    not_large: tuple[str, ...] = ("chen-sqrt", "kusumoto")
    by_table: tuple[str, ...] = ("rotor",)
    by_table_stages_most: int = 400
    long: tuple[str, ...] = ("chen-sqrt", "chen-recursive", "revolve")
    long_stages: int = 100


SETTINGS = ProposalSettings()


def large(problem: Problem) -> bool:
    """Whether even fast solvers take their time, so that only the most useful ones are asked."""
    return len(problem.graph.ops) > SETTINGS.large_ops


def asked(graph: Graph, effort: str) -> tuple[str, ...]:
    """Names of the solvers that are asked for seeds of the whole curve."""
    chain = chain_of(graph)
    stages = 0 if chain is None else chain.turn
    names = [*SETTINGS.brief]
    if effort == "thorough":
        names = [*SETTINGS.always, *(() if len(graph.ops) > SETTINGS.large_ops else SETTINGS.not_large)]
    names += SETTINGS.by_table if stages <= SETTINGS.by_table_stages_most else ()
    names += SETTINGS.long if stages > SETTINGS.long_stages else ()
    return tuple(dict.fromkeys(names))


def blocks_of(problem: Problem) -> Iterator[Levels]:
    """The graph as chains of blocks of different sizes."""
    forward = forward_dag(problem.graph)
    if forward is not None and problem.time_left > 0:
        block_ops = HIERARCHICAL.block_ops[1:] if large(problem) else HIERARCHICAL.block_ops
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
        limit = problem.graph.resident_bytes + int(peak)
        yield from entries(replace(problem, limit=limit, max_overhead=None), curve)


def all_of(problem: Problem, sources: Sequence[Source]) -> list[Entry]:
    """The entries of all sources, in the order of the sources; two are asked at a time, while time is left."""

    def one(source: Source) -> list[Entry]:
        return list(source()) if problem.time_left > 0 else []

    return [e for found in in_threads(problem, one, [(source,) for source in sources]) for e in found]
