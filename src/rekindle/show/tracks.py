"""The memory that a schedule holds over time, thinned to the pixels of a picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..explain.holding import Lives
from ..model.graph import BOUNDARY, Graph, Op
from ..model.judge import Simulation
from ..model.op_names import WORDS, does
from ..model.schedule import Schedule
from .svg import run_ends

LONGEST_NAME = 48  # characters of an op's name beside its dot


@dataclass(frozen=True)
class Track:
    """One panel of the timeline: the memory that a schedule holds, run by run.

    label : heading of the panel.
    judged : the judge's figures for the schedule.
    memory, away : int64 [runs], bytes during each run, resident bytes included; and of values that only the host has then.
    again : bool [runs], whether the op ran before.
    ends, waits : float64 [runs], the time at which the run ends, and how long it waited for copies before it began.
    boundary : index of the run with which forward ends, or None.
    peak_run, peak_op : index of the run at the peak, and its op; None where nothing runs.
    """

    label: str
    judged: Simulation
    memory: np.ndarray
    away: np.ndarray
    again: np.ndarray
    ends: np.ndarray
    waits: np.ndarray
    boundary: int | None
    peak_run: int
    peak_op: Op | None

    @classmethod
    def of(cls, graph: Graph, schedule: Schedule, label: str, weights: np.ndarray) -> Track:
        """The track of a schedule of the graph. Raises as `simulate`.

        weights : float64 [ops], the time of one run of each op.
        """
        lives = Lives.of(graph, schedule)
        judged, ops, memory = lives.judged, lives.ops, lives.memory
        again = np.ones(len(ops), np.bool_)
        again[np.unique(ops, return_index=True)[1]] = False
        peak = int(memory.argmax()) if len(memory) else 0
        peak_op = graph.ops[ops[peak]] if len(ops) else None
        ends, waits = run_ends(graph, schedule, judged, weights)
        return cls(label, judged, memory, lives.away, again, ends, waits, lives.boundary, peak, peak_op)

    @property
    def peak_place(self) -> str:
        """Where the peak is: "in layer1.0 relu", "at the end of forward"; "" where nothing runs."""
        if self.peak_op is None:
            return ""
        return f"{'at' if self.peak_op.name == BOUNDARY else 'in'} {short_name(self.peak_op)}"

    @property
    def length(self) -> float:
        """The time of the whole schedule."""
        return float(self.ends[-1]) if len(self.ends) else 0.0

    def middle(self, run: int) -> float:
        """The time in the middle of a run."""
        return float(self.ends[run] + (self.ends[run - 1] if run else 0.0)) / 2

    def columns(self, length: float, pixels: int) -> tuple[list[float], np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(start, most bytes, most bytes with those away, share of time that is run again, and that is waited) of each
        column of a picture whose pixels show `length` together.

        A column is one run, or the runs that begin within one pixel.
        """
        if not len(self.memory):
            return [], np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0)
        starts = np.concatenate([[0.0], self.ends[:-1]])
        pixel = np.floor(starts / length * pixels) if length else np.zeros(len(starts))
        first = np.flatnonzero(np.diff(pixel, prepend=-1.0))
        most, away = (np.maximum.reduceat(x, first) for x in (self.memory, self.memory + self.away))
        taken = np.diff(self.ends, prepend=0.0)
        all_of_it = np.add.reduceat(taken, first)
        again, waits = (
            np.divide(np.add.reduceat(x, first), all_of_it, out=np.zeros(len(first)), where=all_of_it > 0)
            for x in ((taken - self.waits) * self.again, self.waits)
        )
        return starts[first].tolist(), most, away, again, waits


def short_name(op: Op) -> str:
    """An op in a few words: "layer1.0 relu" for aten.relu.default in the module layer1.0; "the end of forward"."""
    if op.name == BOUNDARY:
        return WORDS[BOUNDARY]
    operator = does(op) if op.target else op.kind
    words = f"{op.module} {operator}".strip() if operator else op.name
    return words if len(words) <= LONGEST_NAME else words[: LONGEST_NAME - 1] + "…"
