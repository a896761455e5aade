"""The time of a step as pictures show it: seconds where the ops' seconds are known, else the plan's own unit of cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...model.graph import Graph


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


def _title(unit: str, target: str | None) -> str:
    if unit == "seconds":
        return "time in the step" + (f", by the roofline of {target}" if target else "")
    return {"flops": "FLOPs of the step", "unit": "operator runs of the step"}[unit]
