"""The table of recomputed ops: one row per kind of op and pattern of module, with its price and what it frees meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...explain.modules import pattern_of
from ...model.graph import Graph
from ...model.judge import simulate
from ...model.op_names import does
from ...model.schedule import FREE, RUN, Schedule
from ..time_axis import run_ends


class _Kind(NamedTuple):
    """Ops that make one row: the pattern of their modules, and what they do."""

    module: str
    does: str


@dataclass
class Recomputed:
    """A row of the table.

    ops : how many ops run again. times : how often they do so, together.
    cost : what these runs add, in the unit of `weights`.
    freed_bytes : bytes that these ops made and that were free between a run and the next one; each value counts once.
    first, last : cost of the step up to the first and the last of these runs.
    """

    module: str
    does: str
    ops: int = 0
    times: int = 0
    cost: float = 0.0
    freed_bytes: int = 0
    first: float = np.inf
    last: float = 0.0


def recomputed(graph: Graph, schedule: Schedule, weights: np.ndarray, patterns: dict[str, str]) -> list[Recomputed]:
    """The rows, dearest first.

    weights : float64 [ops], the cost of one run of each op. patterns : module path -> its folded pattern.
    """
    rows: dict[_Kind, Recomputed] = {}
    ran: set[int] = set()
    again: set[int] = set()
    freed: set[int] = set()
    ends = iter(run_ends(graph, schedule, simulate(graph, schedule), weights)[0].tolist())
    for kind, i, into in schedule.array.tolist():
        if kind != RUN:
            freed |= {i} if kind == FREE else set()
            continue
        freed.add(into)
        end = next(ends)
        op = graph.ops[i]
        if i in ran:
            key = _Kind(pattern_of(op.module, patterns), does(op))
            row = rows.setdefault(key, Recomputed(*key))
            row.times += 1
            row.cost += float(weights[i])
            begin = end - float(weights[i])
            row.first, row.last = min(row.first, begin), max(row.last, begin)
            if i not in again:
                again.add(i)
                row.ops += 1
                row.freed_bytes += sum(graph.values[v].bytes for v in op.outputs if v in freed)
        ran.add(i)
    return sorted(rows.values(), key=lambda r: (-r.cost, -r.freed_bytes, r.module, r.does))
