"""Confirms a plan by a measured step: makes another one if it exceeds a budget, lets the plain step run where that takes less,
and warns of a peak beyond the prediction."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from ...ask import Aim, Budget, Fraction, Goal, TraceOptions
from ...errors import InfeasibleBudget
from ...model.judge import plain_activation_bytes
from ...model.plan import Plan
from ...planning.candidates import Measured
from ...planning.certify import Claim, least_overhead
from ...planning.infeasible import bound_words, budget_words, choices, floor_of
from ...planning.own_terms import beside_captured, in_own_terms
from ...saying import notices
from ...saying.shares import EPS
from ...saying.sizes import exceeds, format_bytes
from .. import accept
from ..measure.as_before import as_before
from ..measure.measured_step import Calls, Outcome
from ..tensors import ranks
from ..tensors.precision import deterministic
from ..trace import Trace, plain_forward
from .verify import Check, Steps, check_step, require, subject

REPLANS_MOST = 2  # plans that are made anew because a measured step took more than the budget (a guess)
# A measured peak differs from another one by more than this share of it, and by more than so many bytes. Guesses.
MISSED = 0.02, 2**20  # from the predicted one: it is said
UNLIKE = 0.02, 2**16  # the plain step's, from the graph's: a fraction is one of the measured step


def confirm(
    model: nn.Module, sample: Any, plan: Plan, again: Callable[[Goal], Plan], plain: Outcome | None = None
) -> Plan:
    """A plan that a measured step confirms, with the check of that step.

    The planned step gives the plain step's numbers. If the goal is a budget in bytes, the step also stays within it in a loop
    that holds the results; if it takes more, plans for smaller budgets are tried. So they are where the goal is a fraction, and
    the step takes more than both the goal and the prediction. Where the plain step takes less than the plan in the end, it
    runs; else a peak beyond the prediction is warned of.

    again : function from a budget to another plan of the same trace. plain : of the plain step; None: it is run here.

    Raises
    ------
    ParityError : a planned step does not give the plain step's numbers.
    InfeasibleBudget : no step stayed within the budget in bytes; the error names the smallest peak that was measured.
    """
    goal, graph = plan.goal, plan.graph
    whole = graph.beside_resident(plan.baseline_peak_bytes)
    limit = aim = goal.limit(graph, whole)
    tried: list[tuple[int, Plan, Check]] = []
    while True:
        check = check_step(model, sample, plan, held=goal.budget is not None, plain=plain)
        require(check, "the planned step")
        if _missed(check, plan):  # by what only a first step allocates and later ones use again?
            later = check_step(model, sample, plan, plain=plain).measured_peak_bytes
            check = replace(check, measured_peak_bytes=min(later, check.measured_peak_bytes))
        peak = check.measured_peak_bytes if goal.budget is None else check.held_peak_bytes
        if limit is None or aim is None or peak is None:
            break
        taken = graph.with_resident(peak)
        tried.append((taken, plan, check))
        if taken <= limit or goal.budget is None and not _missed(check, plan):
            break
        aim -= taken - limit
        beside = graph.beside_resident(aim)
        smaller = Budget(aim) if goal.budget is not None else Fraction(max(0, beside + 0.5) / whole)
        with contextlib.suppress(InfeasibleBudget):
            if len(tried) <= REPLANS_MOST and beside > 0:
                plan = again(smaller)
                continue
        taken, plan, check = min(tried, key=lambda t: t[0])
        break
    above = exceeds(check.measured_peak_bytes, check.plain_peak_bytes)
    if goal.budget is not None and (above or taken > goal.budget):  # does the plain step keep the budget?
        held = plain_step(model, sample, plan.trace_options, Calls.HELD)
        least = None if held is None else graph.with_resident(held.peak)
        above = least is not None and least <= goal.budget
        if taken > goal.budget and not above:
            raise _exceeded(plan, goal.budget, [m for m, *_ in tried], least)
    took = f"a measured step of {type(model).__name__} takes {format_bytes(check.measured_peak_bytes)} of activations"
    if above:
        notices.warn(
            f"{took} by its plan, and {format_bytes(check.plain_peak_bytes or 0)} without one: such calls run plain, since the "
            "plan saves no memory"
        )
    elif _missed(check, plan):
        notices.warn(
            f"{took}, and its plan predicts {format_bytes(plan.activation_peak_bytes)} ({check.peak_error:+.1%}): some kernel "
            "or copy takes memory that is not known. A budget in bytes is kept by what is measured"
        )
    plan = _measured(plan if limit is None else _as_asked(plan, goal, limit), check)
    return replace(plan, checked=check, stays_plain=above)


def measured_plain(model: nn.Module, sample: Any, traced: Trace) -> tuple[Measured | None, Outcome | None]:
    """(the activation peak of a plain step, the same in every process; None: it is what the graph of the trace says, or the
    step does not fit the device; the step, for `confirm`). Eager holds tensors in variables, and makes some that nobody reads.
    """
    graph, step = traced.graph, partial(plain_step, model, sample, traced.options)
    question = {"graph_hash": graph.hash, "resident_bytes": graph.resident_bytes}
    found = ranks.once("the plain step's peak", question, step, lambda made: made and made.peak)
    made, peak = (None, found.answer) if isinstance(found, ranks.Received) else (found, found and found.peak)
    sizes = plain_activation_bytes(graph), peak or 0
    near = peak is None or not exceeds(max(sizes), min(sizes), *UNLIKE)
    on_cpu = made is not None and not made.loss.is_cuda  # on a GPU a planned step may need the bytes of its gradients
    return None if near else Measured(peak), made if on_cpu else None


def plain_step(model: nn.Module, sample: Any, how: TraceOptions, way: Calls = Calls.ONCE) -> Outcome | None:
    """A plain step; None: it does not fit the device."""
    s = subject(model, sample, None, how.gradients, how.unused)
    with accept.gradients_on(), as_before(model, s.sample.tensors), deterministic():
        return Steps(s, {"plain": plain_forward(model)}).plain_if_it_fits(way)


def _missed(check: Check, plan: Plan) -> bool:
    """Whether the measured step takes clearly more than the plan predicts."""
    return exceeds(check.measured_peak_bytes, plan.activation_peak_bytes, *MISSED)


def _measured(plan: Plan, check: Check) -> Plan:
    """The plan with the largest difference from the plain step's gradients that was measured, where it may make any. Warns
    where plain steps differ too."""
    if check.varying:
        notices.warn(
            "gradients of the planned step are as close to a plain step's as plain steps are to each other, and no closer: "
            f"{check.varying_words}. torch.use_deterministic_algorithms(True) makes attention deterministic"
        )
    if plan.rewriting is None or not plan.rewriting.sums or check.gradients_equal is None:
        return plan
    return replace(plan, rewriting=replace(plan.rewriting, sums_error=check.close.get("gradients", (0.0, ""))[0]))


def _as_asked(plan: Plan, goal: Goal, limit: int) -> Plan:
    """The plan with the user's budget as its goal, not the smaller one that was aimed at; later plans are made for it too.

    A plan within the user's budget, `limit` in bytes, may cost less than every plan within the smaller one: the certificate is
    made again.
    """
    if goal == plan.goal:
        return plan
    own = in_own_terms(plan)
    claim = Claim(own.graph, own.graph.weights(own.cost), Aim(limit), own.peak_bytes, own.overhead)
    least = least_overhead(claim, (0.0,))
    asked = replace(plan.options, goal=goal)
    own = replace(
        own, goal=asked.goal, asked=None if plan.asked is None else asked, least_overhead=least,
        status="optimal" if own.overhead <= least + EPS else "feasible",
    )  # fmt: skip
    return own if plan.rewriting is None else beside_captured(own, plan.rewriting, asked)


def _exceeded(plan: Plan, budget: int, measured: list[int], plain: int | None) -> InfeasibleBudget:
    floor = floor_of(plan.graph, 0)
    bound, op = bound_words(plan.graph, floor, 0)
    least = min(measured)
    alone = "" if plain is None else f", the plain step takes {format_bytes(plain)}"
    return InfeasibleBudget(
        f"{budget_words(budget)} cannot be kept: the plan's predicted peak fits, but the measured "
        f"step takes {format_bytes(least)} ({least} bytes) while results are held{alone}, and no "
        f"plan that takes less was found in {len(measured)} tries; no schedule exists below {bound}. The model is as it was. "
        + choices(f"budget={least}"),
        budget=budget, smallest_peak=least, bound_bytes=floor.bytes, op=op,
    )  # fmt: skip
