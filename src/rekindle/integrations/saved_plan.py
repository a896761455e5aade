"""Uses a plan that was saved earlier in place of a new one, where it is the plan that would be asked for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from ..api import apply, checkpoint
from ..checkpointing import Asked
from ..errors import PlanMismatch, RekindleError, TraceError
from ..model import options_file
from ..model.plan import Plan
from ..parts.files import from_text
from ..parts.plan import PartsPlan
from ..saying.progress import telling
from ..torch import accept as torch_accept
from ..torch.parts.applied import parts_taken_off
from ..torch.parts.planning import PartsRequest, bound_here
from ..torch.rewrite.rewritten import fitting
from ..torch.serve.planned import set_aside
from ..torch.serve.verify import check_step, require

OPTIONS = frozenset(inspect.signature(checkpoint).parameters) - {"model", "sample"}


def checkpoint_with(saved: str | None, model: nn.Module, sample: Any, options: Mapping[str, Any]) -> str:
    """`rekindle.checkpoint(model, sample, **options)`, by the saved plan where it was made for the same.

    saved : text of a plan file; None: there is none.

    Returns
    -------
    "" if the saved plan is in use; else why a new one was made: "none was saved".

    Raises
    ------
    RekindleError : as `checkpoint`.
    """
    why = "none was saved"
    if saved is not None:
        try:
            asked = _asked(model, options)
            progress = asked.options.progress
            with torch_accept.alone("checkpoint", model, progress), telling(progress):
                apply(model, _bound(from_text(saved, "the saved plan"), model, sample, asked), asked.on_new_shape)
            return ""
        except RekindleError as e:
            why = str(e)
    checkpoint(model, sample, **options)
    return why


def _asked(model: nn.Module, options: Mapping[str, Any]) -> Asked:
    call = inspect.signature(checkpoint).bind(model, None, **options)
    call.apply_defaults()
    return Asked.of(model, call.arguments)


def _bound(saved: Plan | PartsPlan, model: nn.Module, sample: Any, asked: Asked) -> Plan | PartsPlan:
    """The plan, bound to this model and checked by a measured step.

    Raises
    ------
    RekindleError : the plan was made for something else, or its step does not do here what its file says.
    """
    if asked.captured.compile is not None:
        raise PlanMismatch("a plan with compile= is not used again: its parts are measured in each run")
    if differs := _other_options(saved, asked):
        raise PlanMismatch(f"the saved plan was made with another {differs}")
    with parts_taken_off(model), set_aside(model):
        if saved.kind == "parts":
            return _parts(saved, model, sample, asked)
        if asked.parts is not None:
            raise PlanMismatch("the saved plan is for the whole model, not for its parts")
        return _whole(saved, model, sample, asked)


def _other_options(saved: Plan | PartsPlan, asked: Asked) -> str:
    """Names of the options that differ from the saved plan's; "" if there are none."""
    captured = saved.captured
    passed_over = {"cache", "solver"} if saved.kind == "parts" else {"cache"}  # a file of parts names no solver
    docs = []
    for options, how in ((saved.options, captured), (asked.options, replace(asked.captured, state_bytes=None))):
        doc = options_file.to_json(options, replace(how, state_bytes=None))
        doc |= {"goal": options.goal.to_json(), "solver": options.solver, "cost": options.cost}
        docs.append({k: v for k, v in doc.items() if k not in passed_over})
    return " and ".join(k for k in docs[1] | docs[0] if docs[0].get(k) != docs[1].get(k))


def _parts(saved: PartsPlan, model: nn.Module, sample: Any, asked: Asked) -> PartsPlan:
    error = None
    if asked.parts is None:
        try:
            asked.trace(model, sample)
        except TraceError as e:
            error = e  # shows where to look for parts
        else:
            raise PlanMismatch("the saved plan is for parts of the model, which can be captured whole")
    elif {p.path for p in saved.parts} != set(asked.parts):
        raise PlanMismatch("the saved plan is for other parts of the model")
    request = PartsRequest(model, sample, asked.options, asked.captured, asked.check, asked.parts, error)
    return replace(bound_here(request, saved), asked=asked.options)


def _whole(saved: Plan, model: nn.Module, sample: Any, asked: Asked) -> Plan:
    traced = asked.trace(model, sample)
    made = fitting(traced, saved)
    if made is None:
        raise PlanMismatch("the saved plan is for another graph: other shapes, or another model")
    if traced.graph.resident_bytes != saved.graph.resident_bytes:
        raise PlanMismatch("the saved plan is for a model that holds other bytes during the whole step")
    plan = replace(saved, trace=made.with_graph(saved.graph), asked=asked.options)
    if asked.check and not traced.fake:
        require(check_step(model, sample, plan, held=plan.goal.budget is not None), "a step of the saved plan", plan)
    return plan
