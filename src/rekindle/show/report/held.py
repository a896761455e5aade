"""The memory of a schedule, run by run, by the reason for which it is held, and what is live at the peak.

Every total is the judge's. The parts say which bytes of a total are what:

- saved : made before forward ended, and live after that;
- recomputed : made by an op that ran before;
- passing : every other value that is live: it is made and freed within forward, or within backward;
- working : new outputs and workspace of the op that runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...model.graph import Graph
from ...model.judge import Simulation, simulate
from ...model.schedule import RUN, Schedule

SAVED, RECOMPUTED, PASSING, WORKING = range(4)
PARTS = ("saved", "recomputed", "passing", "working")


class Holder(NamedTuple):
    """One value that is live at the peak, or the workspace of the op that runs there.

    op : id of the op that made it. part : a position in `PARTS`. is_workspace : it is no value.
    """

    op: int
    bytes: int
    part: int
    is_workspace: bool = False


class _Life(NamedTuple):
    """A value from the step in which it is made to the step in which it ends, both included."""

    value: int
    op: int
    part: int


@dataclass(frozen=True)
class Held:
    """The memory of a schedule, run by run.

    judged : the judge's figures.
    ops : int64 [runs], the op of each run.
    parts : int64 [4, runs], bytes by `PARTS`; with `graph.resident_bytes` they add up to the judge's memory of the run.
    boundary : index of the run with which forward ends; None: the graph has no backward.
    peak : index of the run that holds most; -1 where nothing runs.
    at_peak : what is held there beside the resident bytes, largest first.
    """

    judged: Simulation
    ops: np.ndarray
    parts: np.ndarray
    boundary: int | None
    peak: int
    at_peak: tuple[Holder, ...]

    @classmethod
    def of(cls, graph: Graph, schedule: Schedule) -> Held:
        """The memory of a schedule of the graph. O(steps + edges). Raises as `simulate`."""
        judged = simulate(graph, schedule)
        steps = schedule.array
        is_run = steps[:, 0] == RUN
        ops = steps[is_run, 1]
        boundary = _boundary(graph, ops)
        peak = int(judged.memory[is_run].argmax()) if len(ops) else -1
        parts = np.zeros((len(PARTS), len(ops)), np.int64)
        at_peak: list[Holder] = []
        for run, into, live, sizes in _walk(graph, schedule, boundary):
            parts[:WORKING, run] = sizes
            if run == peak:
                at_peak = _holders(graph, int(ops[run]), into, live.values())
        parts[WORKING] = judged.memory[is_run] - graph.resident_bytes - parts.sum(axis=0)
        working = parts[WORKING, peak] - sum(h.bytes for h in at_peak if h.part == WORKING) if len(ops) else 0
        if working > 0:
            at_peak.append(Holder(int(ops[peak]), int(working), WORKING, True))
        return cls(judged, ops, parts, boundary, peak, tuple(sorted(at_peak, key=lambda h: -h.bytes)))

    @property
    def again(self) -> np.ndarray:
        """bool [runs]: whether the op of the run ran before."""
        found = np.ones(len(self.ops), np.bool_)
        found[np.unique(self.ops, return_index=True)[1]] = False
        return found


def _boundary(graph: Graph, ops: np.ndarray) -> int | None:
    """Index of the run with which forward ends."""
    if graph.boundary is not None:
        at = np.flatnonzero(ops == graph.boundary)
    else:
        at = np.flatnonzero(np.array([o.backward for o in graph.ops], np.bool_)[ops])
    return int(at[0]) if len(at) else None


def _walk(
    graph: Graph, schedule: Schedule, boundary: int | None
) -> Iterator[tuple[int, int, dict[int, _Life], tuple[int, int, int]]]:
    """(run, value that it writes over or -1, live values, their bytes by part) before each run."""
    rows = schedule.array.tolist()
    ends = _last_runs(graph, rows)
    size = [v.bytes for v in graph.values]
    live: dict[int, _Life] = {}
    sizes = [0, 0, 0]
    ran: set[int] = set()
    run = 0

    def end(value: int) -> None:
        life = live.pop(value, None)
        if life is not None:
            sizes[life.part] -= size[value]

    for step, (kind, i, into) in enumerate(rows):
        if kind != RUN:
            end(i)
            continue
        yield run, into, live, (sizes[0], sizes[1], sizes[2])
        if into >= 0:
            end(into)
        for v in graph.ops[i].outputs:
            if v not in live:
                crosses = boundary is not None and run < boundary and ends[step, v] >= boundary
                part = RECOMPUTED if i in ran else SAVED if crosses else PASSING
                live[v] = _Life(v, i, part)
                sizes[part] += size[v]
        ran.add(i)
        run += 1


def _last_runs(graph: Graph, rows: list[list[int]]) -> dict[tuple[int, int], int]:
    """(step, value) in which a life begins -> index of the last run before it ends."""
    began: dict[int, int] = {}
    ends: dict[tuple[int, int], int] = {}
    run = -1
    for step, (kind, i, into) in enumerate(rows):
        if kind != RUN:
            if i in began:
                ends[began.pop(i), i] = run
            continue
        run += 1
        if into >= 0 and into in began:
            ends[began.pop(into), into] = run
        for v in graph.ops[i].outputs:
            began.setdefault(v, step)
    ends.update({(step, v): run for v, step in began.items()})
    return ends


def _holders(graph: Graph, op: int, into: int, live: Iterable[_Life]) -> list[Holder]:
    """The values held while `op` runs: those that are live before it, and its new outputs.

    into : the value that its first output writes over, or -1.
    """
    before = [Holder(x.op, graph.values[x.value].bytes, x.part) for x in live]
    outputs = graph.ops[op].outputs[1 if into >= 0 else 0 :]
    return [h for h in (*before, *(Holder(op, graph.values[v].bytes, WORKING) for v in outputs)) if h.bytes]
