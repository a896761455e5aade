"""The public functions `plan`, `frontier`, `apply`, `restore`, and `checkpoint`, which traces, plans, checks and applies."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from . import allowance
from .arguments import choice
from .ask import Goal, LeastMemory, PlanOptions
from .model.graph import Graph
from .model.plan import Plan
from .parts.plan import PartsPlan
from .planning import accept
from .planning.carrying import RECEIVED, Replanned, replan_graph
from .planning.frontiers import frontier_graph
from .planning.infeasible import or_least as made_or_least
from .planning.planner import plan_graph
from .saying.progress import Progress, telling

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .torch.trace import Trace

Budget = str | int | float


def plan(
    what: Trace | Graph,
    budget: Budget | None = None,
    *,
    max_overhead: float | None = None,
    minimize: str | None = None,
    solver: str = "auto",
    cost: str = "seconds",
    effort: str = "normal",
    time_limit: float | None = None,
    seed: int = 0,
    cache: bool = True,
    parity: str = "bitwise",
    or_least: bool = False,
    offload: bool | str = False,
    host_budget: str | int | None = None,
    unused: Sequence[str] | None = None,
    gradients: str | None = None,
    target: str | None = None,
    progress: Progress = None,
) -> Plan:
    """The best plan found for exactly one goal.

    Parameters
    ----------
    what : a Trace, or a bare Graph (no torch needed).
    budget : "8GiB", "512MB" or an int of bytes: the peak of the whole step, everything included. The plan of a Trace keeps
        it also in a loop that holds the results until the step is over (`out = model(x); loss(out).backward()`), while its
        `peak_bytes` is the peak where the loop drops them; a bare Graph knows no such loop. A float in (0, 1]:
        the activation peak, as a fraction of the baseline's: of the step with each op once (eager's holds as much or more).
    max_overhead : least memory within this extra cost (0.1: 10 %).
    minimize : "memory": least memory at any cost; with effort "thorough", the cheapest plan within 0.1 % of it.
    solver : a name that `rekindle solvers` lists.
    cost : the unit of the extra cost: "seconds", "flops" or "unit" (op runs).
    effort : how long `auto` searches: "quick" for the first good plan, "normal" until going on is not worth the wait,
        "thorough" for the best plan it can find. Other solvers take no notice.
    time_limit : seconds that the solver may take; None: as long as `effort` asks for.
    seed : randomised solvers give the same plan for the same seed.
    cache : remember the plan on disk, and read it from there at the next start.
    parity : "bitwise": loss, gradients, buffers and random state are eager's, bit for bit. "close" also admits plans that add
        up a parameter's gradient in another order, split along a batch-like dimension.
    or_least : where no plan keeps the budget, the plan of least memory takes its place, and its sentence says by how much it
        misses the budget.
    offload : True: values may be copied to the host's pinned memory and back in time, where the link has time for it ("auto":
        only where there is a link, so not on a CPU). Needs cost="seconds".
    host_budget : "16GiB" or bytes that the host may hold of them; None: what the plan needs.
    unused : results that the training loop does not read, as they were named in `trace`; None: those of the trace.
    gradients : how the loop treats gradients, as in `trace`; None: as the trace says. For a budget that is a fraction
        they always count as kept.
    target : a device name; seconds are then the roofline of that device, not measured. For the sizes of that device's attention
        too, name it in `trace`.
    progress : called with one line of text now and then. None: where planning takes more than two seconds, stderr shows what
        is done and the best plan so far; False: silence.

    Raises
    ------
    InfeasibleBudget : no plan fits (without `or_least`); the message names the smallest peak that can be reached, the certified
        bound and its op.
        For a Trace, asking for that peak as a budget in bytes works, also where results are held.
    UsageError : no goal or several goals, an unknown solver, cost, parity or target, other `unused` results than the trace's.
    """
    asked = PlanOptions(
        Goal.parse(budget, max_overhead, minimize),
        solver=solver, cost=cost, effort=effort, time_limit=time_limit, seed=seed, cache=cache, parity=parity,
        or_least=or_least, offload=offload, host_budget=accept.host_bytes(host_budget), progress=progress,
    )  # fmt: skip
    options = accept.search(asked)
    accept.unused_of(what, unused)
    with telling(options.progress):
        return plan_with(accept.trace_or_graph(what, target, options, gradients), options)


def plan_with(what: Trace | Graph, options: PlanOptions) -> Plan:
    """`plan` with its options as one object: the way in which every later plan of a model is made."""
    with telling(options.progress), allowance.shared(options.progress):
        return made_or_least(options, lambda options: _plan_for(what, options))


def _plan_for(what: Trace | Graph, options: PlanOptions) -> Plan:
    if isinstance(what, Graph):
        return plan_graph(what, options)
    from .torch import accept as torch_accept
    from .torch.serve.plan_trace import plan_rewritten, plan_trace, with_gradients_said
    from .torch.tensors.lock import LOCK

    torch_accept.process("plan", 3)
    traced = what if options.goal.fraction is None else what.with_gradients("kept")

    def make() -> Plan:
        return plan_rewritten(traced, options, partial(plan_trace, make=plan_graph))

    with LOCK.planning(f"plans {what.module_name}", progress=options.progress):
        start = time.monotonic()
        found = make() if options.goal.budget is None else with_gradients_said(traced, make)
        # Of all steps that were planned, rewritten ones too.
        return replace(found, solve_seconds=time.monotonic() - start)


def replan_with(traced: Trace, options: PlanOptions, known: Sequence[Plan]) -> Replanned:
    """A plan in the middle of a run, where plans of the same module are `known`: see `carrying.replan_graph`. The step is
    rewritten as for known plans."""
    from .torch.serve.plan_trace import plan_trace, rewritten_alike

    how = RECEIVED

    def make(graph: Graph, options: PlanOptions, **given: Any) -> Plan:
        nonlocal how
        made = replan_graph(graph, options, known, **given)
        how = made.how
        return made.plan

    found = rewritten_alike(traced, options, known, partial(plan_trace, make=make))
    return Replanned(found, how)


def frontier(
    what: Trace | Graph,
    *,
    solver: str = "auto",
    cost: str = "seconds",
    effort: str = "normal",
    time_limit: float | None = None,
    seed: int = 0,
    cache: bool = True,
    parity: str = "bitwise",
    unused: Sequence[str] | None = None,
    gradients: str | None = None,
    target: str | None = None,
    progress: Progress = None,
) -> list[Plan]:
    """The whole memory/cost curve: plans in order of falling peak, none dominated by another. Arguments as in `plan`."""
    asked = PlanOptions(
        LeastMemory(),
        solver=solver, cost=cost, effort=effort, time_limit=time_limit, seed=seed, cache=cache, parity=parity,
        progress=progress,
    )  # fmt: skip
    options = accept.search(asked)
    accept.unused_of(what, unused)
    with telling(options.progress), allowance.shared(options.progress):
        what = accept.trace_or_graph(what, target, options, gradients)
        if isinstance(what, Graph):
            return frontier_graph(what, options)
        from .torch.run import stages

        return [replace(p, trace=what) for p in frontier_graph(what.graph, options, finish=stages.finish(what.lowered))]


def apply(model: nn.Module, plan: Plan | PartsPlan, on_new_shape: str = "plan") -> nn.Module:
    """Make `model` train by the plan. The same object comes back: same parameters, state_dict keys and hooks.

    plan : a Plan, or the plans of a model's parts (see `checkpoint`), which are put on its submodules.

    A plan made in this process brings its trace; one from a file is bound at the model's first call. In `eval()`
    (unless the model was traced in `eval()`) and under `no_grad` the model runs as before.

    on_new_shape : how a call without a plan runs. "plan": by a new plan for the same goal, made with the same
        options, once per signature; "plain": without a plan, with one warning; "error": not at all (PlanMismatch).

    Raises
    ------
    PlanMismatch : the plan belongs to a different module.
    ParityError : the plan was made without tensors and runs ops in slices, which are not proven to give the same bits on this
        device; a plan from a file raises it at the first call.
    UsageError : `model` is no module (or a wrapper of one), `plan` no Plan, `on_new_shape` unknown.
    """
    from .torch import accept as torch_accept
    from .torch.serve.planned import NEW_SHAPE

    torch_accept.process("apply")
    torch_accept.module(model)
    choice("on_new_shape", on_new_shape, NEW_SHAPE)
    accept.plan(plan)
    return _apply(model, plan, on_new_shape, check=True)


def _apply(
    model: nn.Module, plan: Plan | PartsPlan, on_new_shape: str, check: bool, first: Plan | PartsPlan | None = None
) -> nn.Module:
    """`apply`, with all that `checkpoint` adds.

    check : whether a plan for a new shape is tried on its call before it is used.
    first : the plan of the very first call, if that call has another graph than the later ones; `plan`: it runs plain.
    """
    from .torch.accept import alone
    from .torch.parts.applied import apply_parts, parts_taken_off
    from .torch.serve.planned import PlannedForward

    with alone("apply", model), parts_taken_off(model):
        if plan.kind == "parts":
            return apply_parts(model, plan, on_new_shape, check, later=first is plan)
        forward = PlannedForward(model, plan, on_new_shape, replan_with, check, first)
        _take_off(model)
        forward.take_over(model)
    return model


def restore(model: nn.Module) -> nn.Module:
    """Undo `apply` or `checkpoint`; a model without a plan is left as it is. If something else has wrapped the planned
    forward since, the wrapper stays and the model runs plain inside it. The state of an optimizer that the host holds
    (`offload="optimizer"`) comes back to the device.

    Raises
    ------
    UsageError : `model` is no module.
    """
    from .torch.accept import module
    from .torch.offload.optimizer_state import bring_back

    module(model)
    bring_back(model)
    return _take_off(model)


def _take_off(model: nn.Module) -> nn.Module:
    """The model without its plan."""
    from .torch.parts.applied import parts_forward
    from .torch.serve.planned import planned_forward

    planned = planned_forward(model)
    if planned is not None:
        planned.give_back(model)
    if (parts := parts_forward(model)) is not None:
        parts.give_back(model)
    return model


def checkpoint(
    model: nn.Module,
    sample: Any,
    budget: Budget | None = None,
    *,
    max_overhead: float | None = None,
    minimize: str | None = None,
    solver: str = "auto",
    cost: str = "seconds",
    effort: str = "normal",
    time_limit: float | None = None,
    seed: int = 0,
    cache: bool = True,
    on_new_shape: str = "plan",
    loss: str = "auto",
    optimizer: torch.optim.Optimizer | type | str | None = None,
    must_save: Sequence[str] = (),
    parity: str = "bitwise",
    or_least: bool = False,
    offload: bool | str = False,
    host_budget: str | int | None = None,
    unused: Sequence[str] = (),
    gradients: str = "kept",
    strict: bool = False,
    parts: str | Sequence[str] | None = None,
    compile: bool | Mapping[str, Any] = False,
    check: bool = True,
    progress: Progress = None,
) -> nn.Module:
    """Plan, apply and check by one measured step: the model comes back and trains within the budget.

    Exactly one of `budget`, `max_overhead` and `minimize` is given. The plan is at `model.forward.plan`. If anything fails
    the model is left as it was.

    Parameters
    ----------
    model : any module that trains; the same object comes back.
    sample : one batch, as the training loop calls the model with it: a tensor, a tuple of positional arguments or a dict of
        keyword arguments.
    budget : "8GiB", "512MB" or an int of bytes: the peak of the whole step, everything included. A float in (0, 1]: the
        activation peak, as a fraction of the baseline's (see `plan`).
    max_overhead : least memory within this extra cost (0.1: 10 %).
    minimize : "memory": least memory at any cost.
    solver : a name that `rekindle solvers` lists; "auto" joins the best of them.
    cost : the unit of the extra cost: "seconds", "flops" or "unit" (op runs).
    effort : how long `auto` searches: "quick", "normal", or "thorough" for the best plan that it can find.
    time_limit : seconds that the search may take; None: as long as `effort` asks for.
    seed : randomised solvers give the same plan for the same seed.
    cache : remember the plan on disk, and read it from there at the next start.
    on_new_shape : how a call of another shape runs. "plan": by a plan of its own for the same goal, made once; "plain": without
        one, after one warning; "error": not at all (PlanMismatch).
    loss : "auto": gradients come back to the scalar named `loss`, or to a scalar result, or else to every result; "all": to
        every result.
    optimizer : an optimizer, its class or a name such as "adamw": its state counts as held during the whole step.
    must_save : names or patterns of submodules that must never run again, such as "blocks.*.router".
    parity : "bitwise": numbers are eager's, bit for bit. "close" also admits plans that add up a gradient in another order.
    or_least : where no plan keeps the budget, take the plan of least memory and say by how much it misses.
    offload : True: values may be copied to the host's memory and back; "auto": only where there is a link, so not on a CPU.
        "optimizer": as "auto"; and the host holds the state of `optimizer`, whose `step()` copies it part by part.
    host_budget : "16GiB" or bytes that the host may hold of them; None: what the plan needs.
    unused : results that the training loop does not read, such as ["logits"]: planned calls return None in their place.
    gradients : "kept": gradients count during the whole step, which is safe for any loop. "fresh": they are None when a step
        begins. "consumed": an optimizer inside backward uses up each one as it comes.
    strict : how to treat a model that cannot be captured whole. False: its largest parts that can be captured are planned
        under the one goal, and a line on stderr says which; True: TraceError.
    parts : names of submodules, or patterns such as "blocks.*": they are planned, and not the model as a whole. `unused`
        is then refused: the model itself makes its results.
    compile : compile the model's forward, cut at its repeated blocks, or the submodules of `parts`, each in the measured
        way that keeps the goal at the least time; True, or a dict of torch.compile's arguments. Numbers are those of the same
        parts compiled without a plan, to rounding.
    check : measure one planned step and compare its numbers with the plain step's.
    progress : called with one line of text now and then. None: stderr shows what takes more than two seconds; False: silence.

    Raises
    ------
    TraceError, InfeasibleBudget, UsageError : as `trace` and `plan`. TraceError also where a submodule of `parts` cannot be
        captured, and where no part of a model can.
    InfeasibleBudget : also where no plan's measured step stays within a budget in bytes.
    ParityError : the planned step does not give the plain step's numbers.
    """
    given = dict(locals())  # the arguments and nothing else, so it stays the first line
    from .checkpointing import Asked, Checkpointing, state_held
    from .torch.accept import process

    process("checkpoint")
    asked = Asked.of(model, given)
    with state_held(model, asked):
        found, later = Checkpointing(model, sample, asked, _plan_for).planned()
        if found.kind == "parts":
            _take_off(model)
        return _apply(model, later or found, on_new_shape, asked.check, None if later is None else found)
