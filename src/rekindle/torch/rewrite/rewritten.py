"""The trace of a rewritten step: smaller saves, and ops that run in slices; see `rewrite`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ...errors import ParityError, PlanMismatch
from ...model.op_names import op_words
from ...model.plan import Plan
from ...model.rewriting import Rewrite
from ..capture.captured import Captured
from ..lowering.normalise import lower
from ..operators.node_tensors import tensors_of
from ..trace import Trace
from .apply import rewritten
from .closeness import marked, sums
from .probe import Bits


def with_rewrites(traced: Trace, steps: Sequence[Rewrite], bits: Bits | None = None) -> Trace:
    """The trace of the step with these rewrites, without costs. bits : as in `apply.rewritten`.

    Raises
    ------
    PlanMismatch : the step has no such ops.
    """
    return with_captured(traced, rewritten(traced.lowered.captured, steps, bits))


def with_captured(traced: Trace, captured: Captured) -> Trace:
    """The trace with another captured step in place of its own, without costs."""
    how = traced.options
    made = lower(captured, traced.graph.name, traced.graph.resident_bytes, how.must_save, how.gradients)
    return replace(traced, graph=made.graph, lowered=made, origin=traced.as_captured)


def rewritten_like(traced: Trace, plan: Plan, bits: Bits | None = None) -> Trace:
    """The trace with the plan's rewrites, or as it is where they do not fit it."""
    if plan.rewriting is None:
        return traced
    try:
        return with_rewrites(traced, plan.rewriting.steps, bits)
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
    """The trace whose graph is the plan's: this one, or this one with the plan's rewrites; None: the plan is for another step.
    Of ops in slices it is proven, by running them, that they give the same bits here.

    Raises
    ------
    ParityError : an op in slices is not proven to, and the plan's parity is bitwise.
    """
    if plan.rewriting is None:
        return traced if traced.graph.hash == plan.graph_hash else None
    if traced.graph.hash != plan.rewriting.captured_hash:
        return None
    # A plan that was made here with tensors was proven when it was made, on the device on which it was traced.
    made_here = plan.trace is not None and not plan.trace.fake and _devices(plan.trace) == _devices(traced)
    bits = Bits() if plan.rewriting.slices and not traced.fake and not made_here else None
    return _checked(rewritten_like(traced, plan, bits), plan, bits)


def _devices(traced: Trace) -> set[torch.device]:
    """The devices of the tensors that the caller holds."""
    return {t.device for p in traced.lowered.captured.placeholders for _, t in tensors_of(p)}


def proven_here(traced: Trace, plan: Plan) -> Trace:
    """The trace of a plan that was made without tensors, for a module that has some: its ops in slices are proven now.

    Raises
    ------
    ParityError : as `fitting`.
    """
    if plan.rewriting is None or not plan.rewriting.slices:
        return traced
    bits = Bits()
    return _checked(rewritten_like(traced.as_captured, plan, bits), plan, bits) or traced


def _checked(made: Trace, plan: Plan, bits: Bits | None) -> Trace | None:
    """The rewritten trace if it is the plan's, its bits checked where that is asked for. bits : has proven some."""
    if bits is not None:
        bits.save()
    if made.graph.hash != plan.graph_hash:
        return None
    if bits is not None and plan.options.parity == "bitwise":
        _check_bits(made)
    return made


def with_sums_here(plan: Plan, traced: Trace) -> Plan:
    """The plan, with the names of the parameters whose gradients may differ by rounding on this device. traced : its step."""
    if plan.rewriting is None:
        return plan
    return replace(plan, rewriting=replace(plan.rewriting, sums=sums(traced.lowered.captured)))


def _check_bits(traced: Trace) -> None:
    """Raise ParityError where an op in slices is not proven to give the bits of the whole op."""
    wrong = marked(traced.lowered.captured)
    if not wrong:
        return
    words = next(op_words(o) for o, c in zip(traced.graph.ops, traced.lowered.calls, strict=True) if c.node in wrong)
    raise ParityError(
        f"the plan runs {words} and others in slices, which are not proven to give the bits of the whole op on this device. "
        f"Plan {traced.module_name} on this device, or make a plan with parity='close', which admits results that are equal up "
        "to rounding"
    )
