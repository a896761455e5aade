"""The trace of a rewritten step: smaller saves, and ops that run in slices; see `rewrite`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import PlanMismatch
from ..model.plan import Plan
from ..model.rewriting import Rewrite
from .capture.captured import Captured
from .capture.normalise import lower
from .rewrite.apply import rewritten
from .trace import Trace


def with_rewrites(traced: Trace, steps: Sequence[Rewrite]) -> Trace:
    """The trace of the step with these rewrites, without costs.

    Raises
    ------
    PlanMismatch : the step has no such ops.
    """
    return with_captured(traced, rewritten(traced.lowered.captured, steps))


def with_captured(traced: Trace, captured: Captured) -> Trace:
    """The trace with another captured step in place of its own, without costs."""
    made = lower(captured, traced.graph.name, traced.graph.resident_bytes, traced.options.must_save)
    return replace(traced, graph=made.graph, lowered=made, origin=traced.as_captured)


def rewritten_like(traced: Trace, plan: Plan) -> Trace:
    """The trace with the plan's rewrites, or as it is where they do not fit it."""
    if plan.rewriting is None:
        return traced
    try:
        return with_rewrites(traced, plan.rewriting.steps)
    except PlanMismatch:
        return traced


def as_planned(traced: Trace, plan: Plan) -> Trace:
    """The trace whose graph is the plan's: this one, or this one with the plan's rewrites.

    Raises
    ------
    PlanMismatch : the plan is for another step.
    """
    made = traced if traced.graph.hash == plan.graph_hash else fitting(traced, plan)
    if made is None:
        raise PlanMismatch(
            f"the plan is for graph {plan.graph_hash[:12]}, and this step has graph {traced.graph.hash[:12]}; make it again"
        )
    return made


def fitting(traced: Trace, plan: Plan) -> Trace | None:
    """The trace whose graph is the plan's: this one, or this one with the plan's rewrites, costed as the plan says; None: the
    plan is for another step."""
    if plan.rewriting is None:
        return traced if traced.graph.hash == plan.graph_hash else None
    if traced.graph.hash != plan.rewriting.captured_hash:
        return None
    made = rewritten_like(traced, plan)
    return made if made.graph.hash == plan.graph_hash else None
