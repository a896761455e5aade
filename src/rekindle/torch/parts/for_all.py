"""One plan of parts for all processes of a distributed run: the first that asks makes it, the others bind and check it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import replace

from ...errors import PlanMismatch, RekindleError, UsageError
from ...model.plan import Plan
from ...parts.files import parts_plan_from_json
from ...parts.plan import Part, PartsPlan
from ...saying.notices import warn
from ...saying.progress import announce
from .. import accept
from ..measure.as_before import as_before
from ..measure.caches import matter, without_caches
from ..measure.measured_step import Calls, run
from ..serve.verify import require, subject
from ..tensors import ranks
from ..tensors.precision import deterministic
from ..tensors.sharded import any_fully_sharded, class_name
from ..trace import plain_forward
from ..ways.finding import Found, Unit
from .applied import Replan
from .planning import PartsRequest, find, plan_parts, question
from .verify import verify

_SHARDED = itertools.count()  # each plan of a sharded model is made anew: how it is sharded is not in the question


def parts_for_all(request: PartsRequest) -> PartsPlan:
    """The plans of parts that every process gets that asks for the same: a model of the same shapes, inputs and options.

    A process whose model turns out to be another one warns, and plans by itself. Raises as `plan_parts`.
    """
    if any_fully_sharded(request.model):
        return _parts_of_sharded(request)
    found = ranks.once(
        "the plans of parts", question(request), lambda: plan_parts(request), PartsPlan.to_json, request.options.report
    )
    if not isinstance(found, ranks.Received):
        return found
    try:
        return bound_here(request, parts_plan_from_json(found.answer, "the plans of parts of another process"))
    except RekindleError as e:
        warn(
            f"the plans of parts that another process made do not fit the {class_name(request.model)} of this one, which "
            f"plans by itself, so plans differ from process to process: {e}"
        )
        return plan_parts(request)


def _parts_of_sharded(request: PartsRequest) -> PartsPlan:
    """The same for a model that `fully_shard` has sharded. All processes run each step together: while the first one measures
    planned steps, the others take plain ones, in which the same pieces of parameters and gradients travel.

    Raises
    ------
    UsageError : the model is made of fake tensors.
    RekindleError : as `plan_parts`.
    """
    model, how = request.model, request.captured
    s = subject(model, request.sample, None, how.gradients, how.unused_by_parts)
    if s.fake is not None:
        raise UsageError(
            f"{class_name(model)} is sharded and made of fake tensors, which no process can send; plan it before fully_shard"
        )
    alike = deterministic() if how.compile is None else contextlib.nullcontext()
    with accept.gradients_on(), as_before(model, s.sample.tensors), alike:
        keeps = matter(s)
        with without_caches(model, keeps):
            found = find(request, s)
        turns = ranks.Turns(lambda: run(s, plain_forward(model), "plain", Calls.HELD))
        made = ranks.once(
            "the plans of parts", question(request) | {"inputs": [], "sharded": next(_SHARDED)},
            lambda: plan_parts(replace(request, turns=turns), found, keeps), PartsPlan.to_json, request.options.report, turns,
        )  # fmt: skip
    if not isinstance(made, ranks.Received):
        return made
    plan = parts_plan_from_json(made.answer, "the plans of parts of another process")
    try:
        return _with_traces(plan, request, found)
    except PlanMismatch:  # the inputs of this process have other shapes
        return _carried_over(plan, request, found)


def bound_here(request: PartsRequest, plan: PartsPlan) -> PartsPlan:
    """The plans, bound to this process's model and checked by measured steps.

    Raises
    ------
    RekindleError : they do not fit the model, do not give the plain step's numbers, or exceed the budget here.
    """
    s, found = subject(request.model, request.sample, gradients=request.captured.gradients), Found()
    if request.captured.compile is None:  # compiled parts have no traces
        with (
            accept.gradients_on(),
            as_before(request.model, s.sample.tensors, fake=s.fake is not None),
            s.fake or deterministic(),
            without_caches(request.model, plan.keeps_caches),
        ):
            found = find(request, s)
    bound = _with_traces(plan, request, found)
    if request.check and s.fake is None:
        announce(request.options.progress, "checking the plans of another process by a measured step")
        require(verify(request.model, request.sample, bound), "the step with planned parts", bound)
    return bound


def _with_traces(plan: PartsPlan, request: PartsRequest, found: Found) -> PartsPlan:
    """The plans with the traces of this process.

    Raises
    ------
    PlanMismatch : a part has another graph here, or must not run again.
    """
    units: dict[str, list[Unit]] = {}
    for u in found.units:
        units.setdefault(u.path, []).append(u)
    parts = tuple(_part(p, units.get(p.path, [])) for p in plan.parts)
    return replace(plan, parts=parts, captured=request.captured)


def _carried_over(plan: PartsPlan, request: PartsRequest, found: Found) -> PartsPlan:
    """The same schedules for other shapes; where one does not keep its goal there, one that holds as small a share.

    Raises
    ------
    PlanMismatch : a part cannot be captured here.
    """
    parts = []
    for part in plan.parts:
        traces = [u.trace for u in found.units if u.path == part.path and u.trace is not None]
        if not traces:
            raise PlanMismatch(f"{part.path!r} cannot be captured here, but in another process it can")
        replan = Replan(part.plans)
        parts.append(replace(part, plans=tuple(replan(t, request.options, ()).plan for t in traces)))
    return replace(plan, parts=tuple(parts), captured=request.captured)


def _part(part: Part, units: Sequence[Unit]) -> Part:
    """The part with the traces of this process."""
    if part.again:
        if not any(u.trace is None for u in units):
            raise PlanMismatch(f"{part.path!r} cannot run again in backward here")
        return part
    return replace(part, plans=tuple(_with_trace(p, part.path, units) for p in part.plans))


def _with_trace(plan: Plan, path: str, units: Sequence[Unit]) -> Plan:
    for u in units:
        if u.trace is not None and u.trace.graph.hash == plan.graph_hash:
            return replace(plan, trace=u.trace.with_graph(plan.graph))
    raise PlanMismatch(f"{path!r} has another graph here")
