"""Peak of a step while the caller keeps the results: `out = model(x); loss(out).backward()`.

The judge lets a schedule free a result once the loss has read it. A caller who still holds it keeps its storage alive all
the same: the schedule's free gives nothing back, and where the schedule makes the result again there are two of it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .floor import remembered
from .graph import Graph
from .judge import simulate
from .schedule import FREE, RUN, Schedule


def result_values(graph: Graph) -> np.ndarray:
    """int64; values that the caller may hold: the boundary reads them, and ops of the step make them."""
    if graph.boundary is None:
        return np.zeros(0, np.int64)
    read = np.unique(np.array(graph.ops[graph.boundary].inputs, np.int64))
    return read[(graph.arrays.producer[read] >= 0) & (graph.arrays.bytes[read] > 0)]


def held_peak(graph: Graph, schedule: Schedule) -> int:
    """The most bytes of `held_memory`."""
    return int(held_memory(graph, schedule).max(initial=graph.resident_bytes))


def held_memory(graph: Graph, schedule: Schedule) -> np.ndarray:
    """int64 [runs]: bytes held during each run, resident ones included, where the caller holds every result of forward to the
    end of the step. A result that is made again while the caller holds it counts twice. O(steps + edges).

    Raises
    ------
    FormatError : the schedule is for another graph, or breaks a rule.
    """
    memory = simulate(graph, schedule).memory
    rows = schedule.array
    results = result_values(graph)
    if len(results):
        memory = memory + _left_to_the_caller(graph, rows, results)
    return memory[rows[:, 0] == RUN]


def _left_to_the_caller(graph: Graph, rows: np.ndarray, results: np.ndarray) -> np.ndarray:
    """int64 [steps]: bytes of the results, as they were when forward ended, that the schedule counts no more."""
    at = int(np.flatnonzero((rows[:, 0] == RUN) & (rows[:, 1] == graph.boundary))[0])
    steps = np.arange(len(rows))
    after = steps > at
    end = np.full(len(graph.values), len(rows), np.int64)  # the step from which the schedule counts a result no more
    freed = after & (rows[:, 0] == FREE)
    np.minimum.at(end, rows[freed, 1], steps[freed])
    # A second run of the maker counts both copies while it lasts, and the new one alone after it.
    again = np.full(len(graph.ops), len(rows), np.int64)
    ran = after & (rows[:, 0] == RUN)
    np.minimum.at(again, rows[ran, 1], steps[ran] + 1)
    since = np.minimum(end[results], again[graph.arrays.producer[results]])
    extra = np.zeros(len(rows) + 1, np.int64)
    np.add.at(extra, since, graph.arrays.bytes[results])
    return extra.cumsum()[:-1]


@remembered
def keeping_results(graph: Graph) -> Graph:
    """The graph for solvers in which every result is kept to the end of the step. Results are made once: where they could be
    made again, a solver would free them meanwhile and believe that it had gained their bytes."""
    results = result_values(graph)
    once = {int(i) for i in graph.arrays.producer[results]}
    ops = tuple(replace(op, recompute=op.recompute and i not in once) for i, op in enumerate(graph.ops))
    return replace(graph, ops=ops, keep=_with(graph, results))


@remembered
def relaxed(graph: Graph) -> Graph:
    """`keeping_results` where results may be made again: its bounds hold for every loop that holds its results."""
    return replace(graph, keep=_with(graph, result_values(graph)))


def _with(graph: Graph, results: np.ndarray) -> tuple[int, ...]:
    return tuple(dict.fromkeys([*graph.keep, *results.tolist()]))
