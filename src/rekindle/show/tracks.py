"""The memory that a schedule holds, run by run, thinned to the pixels of a picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.graph import Graph, Op
from ..model.judge import Simulation, simulate
from ..model.schedule import RUN, Schedule

LONGEST_NAME = 48  # characters of an op's name beside its dot


@dataclass(frozen=True)
class Track:
    """One panel of the timeline: the memory that a schedule holds, run by run.

    label : heading of the panel.
    judged : the judge's figures for the schedule.
    memory : int64 [runs], bytes during each run, resident bytes included.
    again : bool [runs], whether the op ran before.
    boundary : index of the first run after which backward begins, or None.
    peak_run, peak_op : index of the run at the peak, and its op; None where nothing runs.
    """

    label: str
    judged: Simulation
    memory: np.ndarray
    again: np.ndarray
    boundary: int | None
    peak_run: int
    peak_op: Op | None

    @classmethod
    def of(cls, graph: Graph, schedule: Schedule, label: str) -> Track:
        """The track of a schedule of the graph. Raises as `simulate`."""
        judged = simulate(graph, schedule)
        steps = schedule.array
        is_run = steps[:, 0] == RUN
        ops, memory = steps[is_run, 1], judged.memory[is_run]
        again = np.ones(len(ops), np.bool_)
        again[np.unique(ops, return_index=True)[1]] = False
        backward = np.array([o.backward for o in graph.ops], np.bool_)[ops]
        starts = np.flatnonzero(ops == graph.boundary if graph.boundary is not None else backward)
        peak = int(memory.argmax()) if len(memory) else 0
        peak_op = graph.ops[ops[peak]] if len(ops) else None
        return cls(label, judged, memory, again, int(starts[0]) if len(starts) else None, peak, peak_op)

    @property
    def peak_name(self) -> str:
        """The name of the op at the peak; "" where nothing runs."""
        return "" if self.peak_op is None else self.peak_op.name

    def columns(self, runs: int, pixels: int) -> tuple[list[float], np.ndarray, np.ndarray]:
        """(first run, most bytes, share of recomputed runs) of each column of a picture that shows `runs` runs.

        A column is one run, or one of the `pixels` where there are more runs than pixels.
        """
        count = len(self.memory)
        if not count:
            return [], np.zeros(0), np.zeros(0)
        edges = np.arange(count) if runs <= pixels else np.unique((np.arange(pixels) * runs / pixels).astype(np.int64))
        edges = edges[edges < count]
        width = np.diff(np.append(edges, count))
        most = np.maximum.reduceat(self.memory, edges)
        return edges.tolist(), most, np.add.reduceat(self.again.astype(np.float64), edges) / width


def short_name(op: Op) -> str:
    """An op in a few words: "layer1.0 relu" for aten.relu.default in the module layer1.0."""
    operator = (op.target or op.kind).removeprefix("aten.").removesuffix(".default")
    words = f"{op.module} {operator}".strip() if operator else op.name
    return words if len(words) <= LONGEST_NAME else words[: LONGEST_NAME - 1] + "…"
