"""One plan of parts for all processes of a distributed run: the first that asks makes it, the others bind and check it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from ...errors import ParityError, PlanMismatch, RekindleError
from ...model import options_file
from ...model.plan import Plan
from ...notices import warn
from ...parts.files import parts_plan_from_json
from ...parts.plan import Part, PartsPlan
from ...progress import announce
from ...sizes import format_bytes
from .. import accept, ranks
from ..capture import tree
from ..check.verify import subject
from ..run.measured_step import deterministic, gradients_as_before
from ..trace import call_arguments
from .caches import without_caches
from .finding import Unit
from .planning import Request, find, plan_parts
from .verify import verify


def parts_for_all(request: Request) -> PartsPlan:
    """The plans of parts that every process gets that asks for the same: a model of the same shapes, inputs and options.

    A process whose model turns out to be another one warns, and plans by itself. Raises as `plan_parts`.
    """
    found = ranks.once(
        "the plans of parts", _question(request), lambda: plan_parts(request), PartsPlan.to_json, request.options.report
    )
    if not isinstance(found, ranks.Received):
        return found
    try:
        return bound_here(request, parts_plan_from_json(found.answer, "the plans of parts of another process"))
    except RekindleError as e:
        warn(
            f"the plans of parts that another process made do not fit the {type(request.model).__name__} of this one, which "
            f"plans by itself, so plans differ from process to process: {e}"
        )
        return plan_parts(request)


def _question(request: Request) -> dict[str, Any]:
    """All on which the plans depend, but for measured costs and the state of the model: processes should not differ there."""
    options, captured = request.options, request.captured
    args, kwargs = call_arguments(request.sample)
    tensors = tree.flatten((args, kwargs))[0]
    return {
        "model": hashlib.sha256(repr(_shapes(request.model)).encode()).hexdigest(),
        "inputs": [[[*t.shape], str(t.dtype), t.device.type, t.requires_grad] for t in tensors],
        "arguments": [len(args), *kwargs], "goal": options.goal.to_json(), "solver": options.solver, "cost": options.cost,
        "options": options_file.to_json(options, captured), "check": request.check, "named": request.named,
        "fake": subject(request.model, request.sample).fake is not None,
    }  # fmt: skip


def _shapes(model: nn.Module) -> Sequence[Any]:
    modules = [(name, type(m).__qualname__, m.training) for name, m in model.named_modules()]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [*modules, *((k, tuple(t.shape), str(t.dtype), t.device.type, t.requires_grad) for k, t in tensors)]


def bound_here(request: Request, plan: PartsPlan) -> PartsPlan:
    """The plans, bound to this process's model and checked by measured steps.

    Raises
    ------
    RekindleError : they do not fit the model, do not give the plain step's numbers, or exceed the budget here.
    """
    s = subject(request.model, request.sample)
    with accept.gradients_on(), gradients_as_before(request.model, s.sample.tensors), s.fake or deterministic():
        units: dict[str, list[Unit]] = {}
        with without_caches(request.model):
            found = find(request, s)
        for u in found.units:
            units.setdefault(u.path, []).append(u)
    bound = replace(plan, parts=tuple(_part(p, units.get(p.path, [])) for p in plan.parts), captured=request.captured)
    if request.check and s.fake is None:
        announce(request.options.progress, "checking the plans of another process by a measured step")
        _check(request, bound)
    return bound


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


def _check(request: Request, plan: PartsPlan) -> None:
    checked = verify(request.model, request.sample, plan)
    if not checked.ok:
        raise ParityError(
            f"the step with planned parts does not give the plain step's numbers: {'; '.join(checked.differences)}"
        )
    taken = (checked.held_peak_bytes or 0) + plan.resident_bytes
    budget = plan.goal.budget
    if budget is not None and taken > budget:
        raise PlanMismatch(f"a step takes {format_bytes(taken)} here, and the budget is {format_bytes(budget)}")
