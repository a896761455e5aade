"""Two tables of a report: the memory of a schedule, run by run, by the reason for which it is held; and the recomputed ops.

Every total is the judge's, and every reason is the one that `explain` says. The parts of a total of memory are:

- saved : made before forward ended, and live after that;
- recomputed : made by an op that ran before;
- fetched : brought back from the host;
- passing : every other value that is live: it is made and freed within forward, or within backward;
- working : new outputs and workspace of the op that runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...explain import holding
from ...explain.holding import Lives, Peak, peak_of
from ...explain.modules import pattern_of
from ...model.graph import Graph
from ...model.judge import simulate
from ...model.op_names import does
from ...model.schedule import FREE, RUN, Schedule
from ..svg import run_ends

SAVED, RECOMPUTED, FETCHED, PASSING, WORKING = range(5)
PARTS = ("saved", "recomputed", "fetched", "passing", "working")
PART_OF = {
    holding.SAVED: SAVED, holding.RECOMPUTED: RECOMPUTED, holding.FETCHED: FETCHED,
    holding.GRADIENT: PASSING, holding.FORWARD: PASSING,
    holding.RUNNING: WORKING, holding.WORKSPACE: WORKING,
}  # fmt: skip


@dataclass(frozen=True)
class MemoryByPart:
    """The memory of a schedule, run by run.

    lives : the values that it holds.
    parts : int64 [5, runs], bytes by `PARTS`; with `graph.resident_bytes` they add up to the judge's memory of the run.
    at_peak : what is held in the run that holds most.
    """

    lives: Lives
    parts: np.ndarray
    at_peak: Peak

    @classmethod
    def of(cls, graph: Graph, schedule: Schedule) -> MemoryByPart:
        """The memory of a schedule of the graph. O(steps + edges). Raises as `simulate`."""
        lives = Lives.of(graph, schedule)
        runs, size = len(lives.ops), graph.arrays.bytes.tolist()
        change = np.zeros((len(PARTS), runs + 2), np.int64)
        for x in lives.every:
            change[PART_OF[x.role], x.first + 1] += size[x.value]
            change[PART_OF[x.role], min(x.last, runs) + 1] -= size[x.value]
        parts = change.cumsum(axis=1)[:, :runs]
        parts[WORKING] = graph.beside_resident(lives.memory) - parts.sum(axis=0)
        return cls(lives, parts, peak_of(graph, lives))


@dataclass
class Recomputed:
    """A row of the table.

    ops : how many ops run again. times : how often they do so, together.
    cost : what these runs add, in the unit of `weights`.
    freed_bytes : bytes that these ops made and that were free between a run and the next one; each value counts once.
    first, last : cost of all runs of the step before the first of these runs, and before the last one.
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
    rows: dict[tuple[str, str], Recomputed] = {}
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
            key = pattern_of(op.module, patterns), does(op)
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
