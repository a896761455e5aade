"""The plan of a trace as it stands, without rewrites, and the bytes that its step takes beside the storages of its graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...ask import PlanOptions
from ...candidates import Known
from ...estimates.allocator import BLOCK_BYTES
from ...model.graph import Graph
from ...model.plan import Plan
from ...own_terms import plain_activation_bytes
from ...planner import plan_graph
from ..operators import rules
from ..operators.node_tensors import tensors_of
from ..plan_for_all import plan_for_all
from ..run import stages
from ..trace import Trace

# Scalars that are alive at once, each in a block of CUDA's allocator: the loss and its gradient, and two more while a loss is
# added up from several results.
SCALARS = 4
GENERATOR_BYTES = 5056  # the state of the CPU's random generator, which is saved if a random op runs again (measured)


def bookkeeping(trace: Trace) -> int:
    """Bytes that a step may take beside the storages of its graph. (The tokens between stages are empty.)"""
    nodes = [c.node for c in trace.lowered.calls if c.node is not None and rules.draws_random(c.node.target)]
    on_cpu = any(t.device.type == "cpu" for n in nodes for _, t in tensors_of(n))
    return BLOCK_BYTES * SCALARS + (GENERATOR_BYTES if on_cpu else 0)


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
