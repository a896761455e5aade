"""The public functions: each step alone, and `checkpoint`, which takes them all."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import accept
from .arguments import choice, flag
from .ask import LOSSES, Goal, PlanOptions
from .errors import RekindleError, UsageError
from .frontiers import frontier_graph
from .model.graph import Graph
from .model.plan import Plan
from .planner import plan_graph

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .torch.trace import Trace

log = logging.getLogger("rekindle")
Budget = str | int | float


def plan(
    what: Trace | Graph,
    budget: Budget | None = None,
    *,
    max_overhead: float | None = None,
    minimize: str | None = None,
    solver: str = "auto",
    cost: str = "seconds",
    time_limit: float | None = None,
    seed: int = 0,
    target: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """The best plan found for exactly one goal.

    Parameters
    ----------
    what : a Trace, or a bare Graph (no torch needed).
    budget : "8GiB", "512MB" or an int of bytes: the peak of the whole step, everything included. The plan of a Trace keeps
        it also in a loop that holds the results until the step is over (`out = model(x); loss(out).backward()`), while its
        `peak_bytes` is the peak where the loop drops them; a bare Graph knows no such loop. A float in (0, 1]:
        the activation peak, as a fraction of that of the captured step without a plan (eager holds as much or more).
    max_overhead : least memory within this extra cost (0.1: 10 %).
    minimize : "memory": least memory at any cost.
    solver : a name that `rekindle solvers` lists.
    cost : what the extra cost is counted in: "seconds", "flops" or "unit" (op runs).
    time_limit : seconds the solver may take; None: what it needs.
    seed : randomised solvers give the same plan for the same seed.
    target : a device name; seconds are its roofline instead of what was measured.
    progress : called with one line of text now and then.

    Raises
    ------
    InfeasibleBudget : nothing fits; the message names the smallest peak reachable, the certified bound and its op. Of a
        Trace, that is the smallest budget in bytes that is kept with the results held, and asking for it works.
    UsageError : none or several goals, an unknown solver or cost.
    """
    goal = Goal.parse(budget, max_overhead, minimize)
    accept.search(solver, cost, time_limit, seed, progress)
    return plan_with(what, PlanOptions(goal, solver, cost, time_limit, seed, progress), target)


def plan_with(what: Trace | Graph, options: PlanOptions, target: str | None = None) -> Plan:
    """`plan` with its options as one object."""
    progress = options.progress if callable(options.progress) else None
    trace, graph, finish = _problem(what, target, progress)
    found = plan_graph(graph, options, finish=finish, bookkeeping=_bookkeeping(trace))
    return replace(found, trace=trace)


def frontier(
    what: Trace | Graph,
    *,
    solver: str = "auto",
    cost: str = "seconds",
    time_limit: float | None = None,
    seed: int = 0,
    target: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Plan]:
    """The whole memory/cost curve: plans in order of falling peak, none dominated. Arguments as in `plan`."""
    accept.search(solver, cost, time_limit, seed, progress)
    trace, graph, finish = _problem(what, target, progress)
    options = PlanOptions(Goal(least_memory=True), solver, cost, time_limit, seed, progress)
    return [replace(p, trace=trace) for p in frontier_graph(graph, options, finish=finish)]


def _bookkeeping(trace: Trace | None) -> int | None:
    """Bytes that a budget leaves for what the graph of a trace does not count; None for a bare graph."""
    if trace is None:
        return None
    from .torch.check.kept import bookkeeping

    return bookkeeping(trace)


def _problem(what: Any, target: str | None, progress: Any) -> tuple[Any, Graph, Any]:
    if isinstance(what, Graph):
        if target is not None:
            raise UsageError("target needs a Trace; a bare Graph carries its own seconds")
        return None, what, None
    graph = getattr(what, "graph", None)
    if not isinstance(graph, Graph):
        got = "None" if what is None else f"something of type {type(what).__name__}"
        raise UsageError(
            f"plan and frontier take a Trace or a Graph, not {got}; trace the model first: rekindle.trace(model, sample)"
        )
    from .torch.run import stages

    if target is not None:
        what = what.costed(target, progress)
    return what, what.graph, stages.group


def apply(model: nn.Module, plan: Plan, on_new_shape: str = "plan") -> nn.Module:
    """Make `model` train by the plan. The same object comes back: same parameters, state_dict keys and hooks.

    A plan made in this process brings its trace; one from a file is bound at the model's first call. In `eval()`
    (unless that is what was traced) and under `no_grad` the model runs as before.

    on_new_shape : what a call does that was not planned for: "plan" it anew for the same goal (once per signature), run
        it "plain" with one warning, or raise an "error" (PlanMismatch).

    Raises
    ------
    PlanMismatch : the plan is another module's.
    UsageError : `model` is no module (or a wrapper of one), `plan` no Plan, `on_new_shape` unknown.
    """
    return _apply(model, plan, on_new_shape, check=True)


def _apply(model: nn.Module, plan: Plan, on_new_shape: str, check: bool, first: Plan | None = None) -> nn.Module:
    """`apply`. first : the plan of the very first call, where that call has another graph."""
    from .torch.accept import module
    from .torch.run.planned import NEW_SHAPE, PlannedForward

    module(model)
    accept.plan(plan)
    choice("on_new_shape", on_new_shape, NEW_SHAPE)

    forward = PlannedForward(model, plan, on_new_shape, plan_with, check)
    if first is not None:
        forward.serve_too(model, first)
    restore(model)
    forward.take_over(model)
    return model


def restore(model: nn.Module) -> nn.Module:
    """Undo `apply` or `checkpoint`; a model without a plan is left as it is. Where something else has wrapped the planned
    forward since, the wrapper stays and the model runs plain inside of it.

    Raises
    ------
    UsageError : `model` is no module.
    """
    from .torch.accept import module
    from .torch.run.planned import planned_forward

    module(model)
    planned = planned_forward(model)
    if planned is not None:
        planned.give_back(model)
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
    time_limit: float | None = None,
    seed: int = 0,
    on_new_shape: str = "plan",
    loss: str = "auto",
    optimizer: torch.optim.Optimizer | type | str | None = None,
    must_save: Sequence[str] = (),
    check: bool = True,
    progress: Callable[[str], None] | None = None,
) -> nn.Module:
    """Plan, apply and check by one measured step: the model comes back and trains within the budget.

    `sample` is what the model is called with: a tensor, a tuple of positional arguments or a dict of keyword arguments.
    Goals and solver as in `plan`; `loss`, `optimizer` and `must_save` as in `rekindle.trace`; `on_new_shape` as in
    `apply`. The plan is at `model.forward.plan`. If anything fails the model is left as it was.

    Raises
    ------
    TraceError, InfeasibleBudget, UsageError : as `trace` and `plan`.
    InfeasibleBudget : also where no plan's measured step stays within a budget in bytes.
    ParityError : the planned step does not give the plain step's numbers.
    """
    from .torch import accept as torch_accept
    from .torch.check.kept import confirm
    from .torch.check.probe import probe
    from .torch.run.planned import NEW_SHAPE, set_aside
    from .torch.run.trial import after_first_call
    from .torch.trace import arguments_of_call, call_arguments, plain_forward, trace

    torch_accept.process("checkpoint")
    goal = Goal.parse(budget, max_overhead, minimize)
    accept.search(solver, cost, time_limit, seed, progress)
    choice("on_new_shape", on_new_shape, NEW_SHAPE)
    flag("check", check)
    choice("loss", loss, LOSSES)
    torch_accept.module(model)
    torch_accept.optimizer(optimizer)
    must_save = torch_accept.must_save(model, must_save)
    if check:
        arguments = call_arguments(sample)
        torch_accept.measurable(model, *arguments)
        with set_aside(model), torch_accept.gradients_on():
            probe(model, *arguments, plain_forward(model))
    options = PlanOptions(goal, solver, cost, time_limit, seed, progress)

    def planned() -> Plan:
        told = progress if callable(progress) else None
        traced = trace(model, sample, loss=loss, optimizer=optimizer, must_save=must_save, progress=told)
        found = plan_with(traced, options)
        if check and not traced.fake:
            found, checked = confirm(
                model, sample, found, lambda b: plan_with(traced, replace(options, goal=Goal(budget=b)))
            )
            log.info("%s; measured within %+.2f %%", found.sentence, 100 * checked.peak_error)
        return found

    later = None
    with set_aside(model):
        found = planned()
        if found.trace.lowered.captured.settles and not found.trace.fake:
            # The first call makes attributes that every later call finds: those calls are the ones to plan for.
            call, written = arguments_of_call(model, sample), found.trace.lowered.captured.written_parameters
            with contextlib.suppress(RekindleError), after_first_call(model, *call, written):
                later = planned()
    if later is not None:
        return _apply(model, later, on_new_shape, check, found)
    return _apply(model, found, on_new_shape, check)
