"""The time of a step as pictures show it: seconds where the ops' seconds are known, else the plan's own unit of cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.graph import Graph
from ..model.judge import Simulation
from ..model.schedule import RUN, Schedule
from ..saying.shares import EPS

_SCALES = {
    "seconds": (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)),
    "flops": (("PFLOPs", 1e15), ("TFLOPs", 1e12), ("GFLOPs", 1e9), ("MFLOPs", 1e6), ("FLOPs", 1.0)),
    "unit": (("runs", 1.0),),
}  # each from the largest to the smallest


@dataclass(frozen=True)
class TimeAxis:
    """What the time of a step is measured in.

    unit : "seconds", "flops" or "unit" (runs of ops).
    weights : float64 [ops], the time of one run of each op.
    title : the words at the axis.
    """

    unit: str
    weights: np.ndarray
    title: str

    def scale(self, most: float) -> tuple[str, float]:
        """(name, size) of the unit in which times up to `most` read well: ("ms", 0.001) for 0.4 seconds."""
        units = _SCALES[self.unit]
        return next((u for u in units if most >= 2 * u[1]), units[-1])

    @classmethod
    def of(cls, graph: Graph, cost: str = "seconds", target: str | None = None) -> TimeAxis:
        """The axis for a graph: seconds, or `cost` where no op has seconds, or runs where no op costs anything.

        target : the device whose roofline gave the seconds, for the title.
        """
        for unit in dict.fromkeys(("seconds", cost, "unit")):
            weights = graph.weights(unit)
            if weights.any():
                return cls(unit, weights, _title(unit, target))
        return cls("unit", np.ones(len(graph.ops)), _title("unit", target))


def run_ends(
    graph: Graph, schedule: Schedule, judged: Simulation, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(float64 [runs], the time at which each run ends; how long it waited for copies before it began).

    weights : float64 [ops], the time of one run of each op. Waits count where these are the graph's seconds.
    """
    steps = schedule.array
    is_run = steps[:, 0] == RUN
    taken = weights[steps[is_run, 1]]
    if judged.begins is None or not np.array_equal(weights, graph.weights("seconds")):
        return np.cumsum(taken), np.zeros(len(taken))
    ends = judged.begins[is_run] + taken
    waits = judged.begins[is_run] - np.append(0.0, ends)[: len(ends)]
    return ends, np.where(waits > EPS * judged.seconds, waits, 0.0)


def _title(unit: str, target: str | None) -> str:
    if unit == "seconds":
        return "time in the step" + (f", by the roofline of {target}" if target else "")
    return {"flops": "FLOPs of the step", "unit": "operator runs of the step"}[unit]
