"""`rekindle.verify`, for whole plans and for plans of parts."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from ...arguments import flag
from ...compiling import CompileOptions
from ...errors import UsageError
from ...model.plan import Plan
from ...parts.plan import PartsPlan
from ...planning.accept import plan as accept_plan
from ...printed import value
from .. import accept
from ..compiled.compiled_forward import CompiledForward
from ..measure.as_before import as_before
from ..measure.caches import without_caches
from ..measure.comparison import compare, without_others_draws
from ..measure.measured_step import Calls, LossOf
from ..run.own_forward import Tally
from ..serve.verify import Check, Steps, as_check, check_step, subject
from ..tensors.precision import deterministic
from ..trace import plain_forward
from .applied import PartForward, apply_parts, forwards_of, parts_aside, parts_forward, parts_taken_off
from .searching import reference, rounded


def verify(
    model: nn.Module,
    sample: Any,
    plan: Plan | PartsPlan | None = None,
    *,
    loss: LossOf | None = None,
    count_flops: bool = False,
) -> Check:
    """Run a plain step and a planned step from the same state and compare them bit by bit. Results that a plan with
    parity="close" adds up in another order are compared up to rounding.

    Both start from the same parameters, buffers and RNG state. For a model that draws random numbers, or uses a parameter more
    than once, a second pair of steps is run: the model is called twice, random numbers are drawn in between, and one backward
    goes through both calls (not where only parts of the model are planned). Deterministic algorithms are used throughout. Fused
    attention on a GPU varies all the same: where gradients alone differ in a step that has it, two more plain steps tell how
    far apart gradients may be (`Check.varying`). The module and the sample are left as they were: gradients, buffers, inputs
    and RNG state.

    Parameters
    ----------
    plan : the plan to check; None: the plan that the module has (see `apply`).
    loss : result of the model -> scalar; default: the loss among the results, or their sum. Results that the plan leaves out
        (`unused`) are None in it, in the plain step too.
    count_flops : run one more step each way and count its FLOPs.

    Raises
    ------
    UsageError : there is no plan, or no result that requires grad, or the model has no numbers (on the meta device).
    PlanMismatch : the plan is not for calls with this sample.
    RekindleError : a step fails; the message gives the error of the module, which is its cause, or `met` of a TraceError.
    """
    accept.process("verify")
    flag("count_flops", count_flops)
    accept.module(model)
    if plan is not None:
        accept_plan(plan)
    if loss is not None and not callable(loss):
        raise UsageError(f"loss={value(loss)} cannot be called; give a function from the model's result to a scalar")
    own = parts_forward(model)
    found = own.plan if plan is None and own is not None else plan
    if found is None or found.kind == "step":
        return check_step(model, sample, found, loss=loss, count_flops=count_flops)
    if plan is None and own is not None:
        if own.waits:
            raise UsageError("the plans are for the state that the model's first call sets; call it once before")
        own.have_copies(model)
    put = contextlib.nullcontext() if plan is None else _instead(model, found)
    if count_flops and found.captured.compile is not None:
        raise UsageError("count_flops=True: the FLOPs of compiled parts cannot be counted; leave it out")
    with accept.alone("verify", model), put:
        made = _check(model, sample, found, loss, count_flops)
    if own is not None and own.plan is found:
        own.checked = made
    return made


def _check(model: nn.Module, sample: Any, plan: PartsPlan, loss: LossOf | None, count_flops: bool) -> Check:
    how = plan.captured
    s = subject(model, sample, loss, how.gradients, how.unused_by_parts)
    plain, fake = plain_forward(model), s.fake is not None
    root = parts_forward(model)
    forward = plain if root is None or not plan.stages else root.forward
    around: dict[str, Any] = {
        "planned": partial(without_caches, model, plan.keeps_caches),
        "plain": partial(parts_aside, model),
    }
    steps = Steps(s, {"planned": forward, "plain": plain}, around)
    if how.compile is not None:
        with accept.gradients_on(), _silent(model), as_before(model, s.sample.tensors):
            return _check_compiled(steps, plan, how.compile)
    with (
        accept.gradients_on(),
        _silent(model),
        as_before(model, s.sample.tensors, fake=fake),
        s.fake or deterministic(),
    ):
        ours, theirs = steps.run("planned"), steps.plain_if_it_fits()
        found = without_others_draws(compare(ours, theirs, fake), [(ours, partial(steps.run, "planned"))])
        return steps.checked(found, ours, theirs, plan, way=Calls.ONCE, held=True, count_flops=count_flops)


def _check_compiled(steps: Steps, plan: PartsPlan, compile: CompileOptions) -> Check:
    """The check of compiled parts: against the step with each of them compiled as it is, and against eager's."""
    steps.run("planned")  # compiles what is not compiled yet
    ours, eager = steps.run("planned"), steps.plain_if_it_fits()
    with contextlib.ExitStack() as stack:
        for _, part in forwards_of(steps.s.model):
            if isinstance(part, CompiledForward):
                stack.enter_context(part.as_it_is())
        theirs, apart = reference(eager, partial(steps.run, "planned"), compile)
    found = compare(ours, theirs, False, rounded(ours, apart))
    held = steps.run("planned", Calls.HELD).peak
    made = as_check(found, ours, eager, plan.activation_peak_bytes, None, held)
    return replace(made, eager_difference=apart)


@contextlib.contextmanager
def _instead(model: nn.Module, plan: PartsPlan) -> Any:
    """Inside, the model runs by these plans of its parts; afterwards as before."""
    with parts_taken_off(model, for_good=False):
        apply_parts(model, plan, "error", check=False)
        yield


@contextlib.contextmanager
def _silent(model: nn.Module) -> Any:
    """Inside, no warnings are given by parts with plans of their own, and no calls count."""
    root = parts_forward(model)
    of_stages = {} if root is None else root.tallies
    known = {**of_stages}
    with contextlib.ExitStack() as stack:
        for _, forward in forwards_of(model):
            stack.enter_context(forward.silent() if isinstance(forward, PartForward) else forward.tally.paused())
        for tally in known.values():
            stack.enter_context(tally.paused())
        yield
    for path in of_stages.keys() - known.keys():  # stages that the check was the first to call
        vars(of_stages[path]).update(vars(Tally()))
