"""The plan of a trace as it stands, without rewrites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...ask import PlanOptions
from ...candidates import Known
from ...model.graph import Graph
from ...model.plan import Plan
from ...own_terms import plain_activation_bytes
from ...planner import plan_graph
from ..plan_for_all import plan_for_all
from ..run import stages
from ..trace import Trace
from .confirm import bookkeeping


def plan_trace(traced: Trace, options: PlanOptions, make: Callable[..., Plan]) -> Plan:
    """The plan of a trace, which all processes of a distributed run share. make : called like `plan_graph`, in one process."""
    spare = bookkeeping(traced)
    plain = None if traced.origin is None else plain_activation_bytes(traced.origin.graph)
    how: dict[str, Any] = {"finish": stages.finish(traced.lowered), "bookkeeping": spare, "plain_bytes": plain}

    def planned(graph: Graph, known: Known | None) -> Plan:
        if known is not None:
            return plan_graph(graph, options, known=known, **how)
        return traced.planned(lambda graph: make(graph, options, **how))

    more = {"spare_bytes": spare, "plain_bytes": plain, "target": traced.options.target, "fake": traced.fake}
    found = plan_for_all(traced.graph, options, more, planned)
    return replace(found, trace=traced.with_graph(found.graph))
