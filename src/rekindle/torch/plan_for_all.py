"""One plan for all processes of a distributed run: the first that asks makes it, the others judge and certify its schedule.

Costs of ops are measured by one process too. Costs that differ from process to process never lead to different plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..ask import PlanOptions
from ..candidates import Known
from ..errors import FormatError
from ..model import formats
from ..model.graph import Graph
from ..model.plan import Plan
from .tensors import ranks

Costs = list[tuple[float, int, int]]  # seconds, FLOPs and bytes of workspace of each op


def plan_for_all(
    graph: Graph,
    options: PlanOptions,
    more: dict[str, Any],
    make: Callable[[Graph, Known | None], Plan],
) -> Plan:
    """The plan that every process gets that asks for the same: the same graph, resident bytes and options.

    more : all else, as JSON, on which the plan depends. Costs of ops are left out: they may differ from process to process,
        and those of the process that makes the plan count for all.
    make : function from a graph with costs, and the schedule where it is known, to a plan.

    Raises
    ------
    InfeasibleBudget, UsageError : as `make`, in each process alike.
    RekindleError : the process that makes the plan failed.
    """
    found = ranks.once(
        "the plan", question_of(graph, options, more), partial(make, graph, None), _document, options.report
    )
    if not isinstance(found, ranks.Received):
        return found
    where = "the plan of another process"
    r = formats.Reader(found.answer, where)
    schedule = formats.schedule_from_json(r.table("schedule"), where)
    costs = costs_from_json(r.items("costs"), len(graph.ops), where)
    return make(with_costs(graph, range(len(graph.ops)), costs), Known(schedule, r.whole("bound_bytes")))


def question_of(graph: Graph, options: PlanOptions, more: dict[str, Any]) -> dict[str, Any]:
    """The question that processes ask which want one plan, as JSON. more : as in `plan_for_all`."""
    return {
        "graph_hash": graph.hash, "resident_bytes": graph.resident_bytes, "goal": options.goal.to_json(),
        "solver": options.solver, "cost": options.cost, "effort": options.effort, "time_limit": options.time_limit,
        "seed": options.seed, "parity": options.parity, **more,
    }  # fmt: skip


def costs_for_all(
    graph: Graph, count: int, where: str, make: Callable[[], Costs], progress: Callable[[str], None] | None = None
) -> Costs:
    """Measured costs of `count` ops of a graph, from the one process that measures them.

    where : the devices, versions and settings on which costs depend; processes that differ in them measure on their own.
    """
    question = {"graph_hash": graph.hash, "environment": where}
    found = ranks.once("the measured costs of operators", question, make, lambda costs: costs, progress)
    if isinstance(found, ranks.Received):
        return costs_from_json(found.answer, count, "costs that another process measured")
    return found


def with_costs(graph: Graph, at: Sequence[int], costs: Costs) -> Graph:
    """The graph with these costs of the ops `at`."""
    ops = list(graph.ops)
    for i, (seconds, flops, workspace) in zip(at, costs, strict=True):
        ops[i] = replace(ops[i], seconds=seconds, flops=flops, workspace=workspace)
    return replace(graph, ops=tuple(ops))


def costs_from_json(doc: Any, count: int, where: str) -> Costs:
    """Costs as another process wrote them. count : how many there should be.

    Raises
    ------
    FormatError : they are no costs, or of another number.
    """
    if not isinstance(doc, list) or len(doc) != count or not all(map(_is_cost, doc)):
        raise FormatError(
            f"{where} are no costs of the ops of this graph; use one version of Rekindle in all processes"
        )
    return [(float(s), f, w) for s, f, w in doc]


def _is_cost(x: Any) -> bool:
    if not isinstance(x, list) or len(x) != 3 or any(isinstance(y, bool) for y in x):
        return False
    seconds, *whole = x
    return isinstance(seconds, int | float) and math.isfinite(seconds) and all(isinstance(y, int) for y in whole)


def _document(plan: Plan) -> dict[str, Any]:
    schedule = plan.schedule
    return {
        "schedule": {
            "format": formats.SCHEDULE, "graph_hash": schedule.graph_hash, "solver": schedule.solver,
            "steps": formats.steps_to_json(schedule),
        },
        "bound_bytes": plan.bound_bytes,
        "costs": [[o.seconds, o.flops, o.workspace] for o in plan.graph.ops],
    }  # fmt: skip
