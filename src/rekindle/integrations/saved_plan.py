"""Uses a plan that was saved earlier in place of a new one, where it is the plan that would be asked for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ..accept import search
from ..accept import unused as accept_unused
from ..api import apply, checkpoint
from ..ask import Goal, PlanOptions, TraceOptions
from ..errors import ParityError, PlanMismatch, RekindleError, TraceError
from ..model import options_file
from ..model.formats import parse_json
from ..model.plan import Plan
from ..parts.files import parts_plan_from_json
from ..parts.plan import FORMAT as PARTS
from ..parts.plan import PartsPlan
from ..plan_files import from_text
from ..progress import telling
from ..sizes import format_bytes
from ..torch import accept as torch_accept
from ..torch.parts.applied import parts_taken_off
from ..torch.parts.for_all import bound_here
from ..torch.parts.planning import Request
from ..torch.rewrite.rewritten import fitting
from ..torch.serve.planned import set_aside
from ..torch.serve.verify import check_step
from ..torch.trace import Trace, trace

_OWN = ("budget", "max_overhead", "minimize")  # the goals among the arguments of `checkpoint`
_SEARCH = ("solver", "cost", "effort", "time_limit", "seed", "cache", "parity", "or_least", "progress")
OPTIONS = frozenset(inspect.signature(checkpoint).parameters) - {"model", "sample"}


@dataclass(frozen=True)
class _Asked:
    """The arguments of one call of `checkpoint`, checked."""

    options: PlanOptions
    captured: TraceOptions
    parts: tuple[str, ...] | None
    check: bool
    on_new_shape: str


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
                apply(model, _bound(_read(saved), model, sample, asked), asked.on_new_shape)
            return ""
        except RekindleError as e:
            why = str(e)
    checkpoint(model, sample, **options)
    return why


def _read(text: str) -> Plan | PartsPlan:
    doc, where = parse_json(text, "the saved plan"), "the saved plan"
    is_parts = isinstance(doc, dict) and doc.get("format") == PARTS
    return parts_plan_from_json(doc, where) if is_parts else from_text(text, where)


def _asked(model: nn.Module, options: Mapping[str, Any]) -> _Asked:
    call = inspect.signature(checkpoint).bind(model, None, **options)
    call.apply_defaults()
    given = call.arguments
    torch_accept.optimizer(given["optimizer"])
    return _Asked(
        search(PlanOptions(Goal.parse(*(given[k] for k in _OWN)), **{k: given[k] for k in _SEARCH})),
        TraceOptions(
            given["loss"],
            None,
            given["optimizer"],
            torch_accept.must_save(model, given["must_save"]),
            unused=accept_unused(given["unused"]),
            gradients=given["gradients"] if Goal.parse(*(given[k] for k in _OWN)).fraction is None else "kept",
        ),
        None if given["parts"] is None else torch_accept.parts(model, given["parts"]),
        bool(given["check"]),
        given["on_new_shape"],
    )


def _bound(saved: Plan | PartsPlan, model: nn.Module, sample: Any, asked: _Asked) -> Plan | PartsPlan:
    """The plan, bound to this model and checked by a measured step.

    Raises
    ------
    RekindleError : the plan was made for something else, or its step does not do here what its file says.
    """
    if differs := _other_options(saved, asked):
        raise PlanMismatch(f"the saved plan was made with another {differs}")
    with parts_taken_off(model), set_aside(model):
        if isinstance(saved, PartsPlan):
            return _parts(saved, model, sample, asked)
        if asked.parts is not None:
            raise PlanMismatch("the saved plan is for the whole model, not for its parts")
        return _whole(saved, model, sample, asked)


def _other_options(saved: Plan | PartsPlan, asked: _Asked) -> str:
    """Names of the options with which the saved plan was made and that are others now; "" if there are none."""
    captured = saved.captured
    passed_over = {"cache", "solver"} if isinstance(saved, PartsPlan) else {"cache"}  # a file of parts names no solver
    docs = []
    for options, how in ((saved.options, captured), (asked.options, replace(asked.captured, state_bytes=None))):
        doc = options_file.to_json(options, replace(how, state_bytes=None))
        doc |= {"goal": options.goal.to_json(), "solver": options.solver, "cost": options.cost}
        docs.append({k: v for k, v in doc.items() if k not in passed_over})
    return " and ".join(k for k in docs[1] | docs[0] if docs[0].get(k) != docs[1].get(k))


def _traced(model: nn.Module, sample: Any, asked: _Asked) -> Trace:
    how = asked.captured
    return trace(
        model, sample, loss=how.loss, optimizer=how.optimizer, must_save=how.must_save, unused=how.unused,
        gradients=how.gradients, progress=asked.options.progress,
    )  # fmt: skip


def _parts(saved: PartsPlan, model: nn.Module, sample: Any, asked: _Asked) -> PartsPlan:
    error = None
    if asked.parts is None:
        try:
            _traced(model, sample, asked)
        except TraceError as e:
            error = e  # as `checkpoint` finds it, and from it the parts
        else:
            raise PlanMismatch("the saved plan is for parts of the model, which can be captured whole")
    elif {p.path for p in saved.parts} != set(asked.parts):
        raise PlanMismatch("the saved plan is for other parts of the model")
    request = Request(model, sample, asked.options, asked.captured, asked.check, asked.parts, error)
    return replace(bound_here(request, saved), asked=asked.options)


def _whole(saved: Plan, model: nn.Module, sample: Any, asked: _Asked) -> Plan:
    traced = _traced(model, sample, asked)
    made = fitting(traced, saved)
    if made is None:
        raise PlanMismatch("the saved plan is for another graph: other shapes, or another model")
    if traced.graph.resident_bytes != saved.graph.resident_bytes:
        raise PlanMismatch("the saved plan is for a model that holds other bytes during the whole step")
    plan = replace(saved, trace=made.with_graph(saved.graph), asked=asked.options)
    if asked.check and not traced.fake:
        _check(plan, model, sample, traced.graph.resident_bytes)
    return plan


def _check(plan: Plan, model: nn.Module, sample: Any, resident_bytes: int) -> None:
    budget = plan.goal.budget
    checked = check_step(model, sample, plan, held=budget is not None)
    if not checked.ok:
        raise ParityError(
            f"the saved plan does not give the plain step's numbers here: {'; '.join(checked.differences)}"
        )
    taken = resident_bytes + (checked.held_peak_bytes or 0)
    if budget is not None and taken > budget:
        raise PlanMismatch(
            f"a step of the saved plan takes {format_bytes(taken)} here, above the budget of {format_bytes(budget)}"
        )
