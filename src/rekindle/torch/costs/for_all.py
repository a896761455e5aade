"""Costs of ops that one process of a distributed run measures for all, so that they never lead to different plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...errors import FormatError
from ...model.graph import Graph
from ..tensors import ranks

Costs = list[tuple[float, int, int]]  # seconds, FLOPs and bytes of workspace of each op


def costs_for_all(
    graph: Graph, count: int, where: str, make: Callable[[], Costs], progress: Callable[[str], None] | None
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
