"""The points of a memory/time curve for the report: each plan's figures and its memory over time in few columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ask import Goal, PlanOptions
from ...errors import UsageError
from ...frontiers import frontier_graph
from ...model.graph import Graph
from ...model.judge import simulate
from ...model.plan import Plan
from ...model.schedule import RUN, Schedule
from ...progress import Progress, announce, telling


@dataclass(frozen=True)
class CurveSettings:
    """Guesses that keep a report small and its making short.

    columns : of the memory of each point of the curve.
    search_s : seconds that the search for a curve may take.
    most_ops : ops of the largest graph for which a curve is searched unasked.
    """

    columns: int = 400
    search_s: float = 5.0
    most_ops: int = 1500


SETTINGS = CurveSettings()
Frontier = Sequence[Plan] | bool | None  # as users give it: plans, True: search, False: none, None: search if it is quick


def points_of(plan: Plan, frontier: Frontier, progress: Progress = None) -> list[Plan]:
    """The plans of the curve that a report shows, in order of falling peak; none where no curve is wanted.

    frontier : plans of the same graph; True: a search of a few seconds; False: none; None: a search if the graph is small.

    Raises
    ------
    UsageError : `frontier` is something else, or one of its plans is for a different graph.
    """
    if frontier is None:
        frontier = len(plan.graph.ops) <= SETTINGS.most_ops
    if isinstance(frontier, bool):
        return _searched(plan, progress) if frontier else []
    plans = list(frontier) if isinstance(frontier, Sequence) and not isinstance(frontier, str) else [frontier]
    for p in plans:
        if not isinstance(p, Plan):
            raise UsageError(f"frontier takes the plans that rekindle.frontier gives, not {type(p).__name__}")
        if p.graph_hash != plan.graph_hash:
            raise UsageError(
                f"the frontier is for graph {p.graph_hash[:12]}, and the plan for graph {plan.graph_hash[:12]}; "
                "give rekindle.frontier(...) the trace or graph that the plan was made for"
            )
    return sorted(plans, key=lambda p: -p.peak_bytes)


def _searched(plan: Plan, progress: Progress) -> list[Plan]:
    options = PlanOptions(
        Goal(least_memory=True), cost=plan.cost, effort="quick", time_limit=SETTINGS.search_s, seed=plan.options.seed,
        cache=plan.options.cache, progress=progress,
    )  # fmt: skip
    with telling(progress):
        announce(progress, "searching for the memory/time curve that the report shows")
        return frontier_graph(plan.graph, options)


def columns(graph: Graph, schedule: Schedule, weights: np.ndarray) -> dict[str, list[Any]]:
    """The memory of a schedule in `SETTINGS.columns` stretches of equal time: the end of each, and the most bytes in it.

    weights : float64 [ops], the time of one run of each op.
    """
    is_run = schedule.array[:, 0] == RUN
    memory = simulate(graph, schedule).memory[is_run]
    ends = np.cumsum(weights[schedule.array[is_run, 1]])
    if not len(ends) or not ends[-1]:
        return {"ends": [], "bytes": []}
    # a run belongs to the column in which it ends
    column = np.minimum((ends / ends[-1] * SETTINGS.columns).astype(np.int64), SETTINGS.columns - 1)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    last = np.append(starts[1:], len(ends)) - 1
    most = np.maximum.reduceat(memory, starts)
    return {"ends": [float(f"{x:.5g}") for x in ends[last]], "bytes": most.tolist()}
