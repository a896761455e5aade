"""Confirms a plan by a measured step. Makes another one if the step exceeds a budget; warns of a peak beyond the prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from ...ask import Aim, Budget, Fraction, Goal
from ...errors import InfeasibleBudget, ParityError
from ...model.judge import plain_activation_bytes
from ...model.plan import Plan
from ...planning.candidates import Measured
from ...planning.certify import Claim, least_overhead
from ...planning.infeasible import bound_words, budget_words, choices, floor_of
from ...planning.own_terms import beside_captured, in_own_terms
from ...saying import notices
from ...saying.shares import EPS
from ...saying.sizes import format_bytes
from .. import accept
from ..measure.as_before import as_before
from ..tensors import ranks
from ..tensors.precision import deterministic
from ..trace import Trace, plain_forward
from .verify import Check, Steps, check_step, subject

REPLANS_MOST = 2  # plans that are made anew because a measured step took more than the budget (a guess)
# A measured peak beyond the predicted one by more than both is said. Guesses.
MISS_SHARE = 0.02
MISS_BYTES = 2**20
PLAIN_BYTES = 2**16  # beside the same share: from there on a fraction is one of the measured plain step


def confirm(model: nn.Module, sample: Any, plan: Plan, again: Callable[[Goal], Plan]) -> tuple[Plan, Check]:
    """(a plan that a measured step confirms, the check of that step).

    The planned step gives the plain step's numbers. If the goal is a budget in bytes, the step also stays within it in a loop
    that holds the results; if it takes more, plans for smaller budgets are tried. So they are where the goal is a fraction, and
    the step takes more than both the goal and the prediction. A peak beyond the prediction in the end is warned of.

    again : function from a budget to another plan of the same trace.

    Raises
    ------
    ParityError : a planned step does not give the plain step's numbers.
    InfeasibleBudget : no step stayed within the budget in bytes; the error names the smallest peak that was measured.
    """
    goal, graph = plan.goal, plan.graph
    plain = graph.beside_resident(plan.baseline_peak_bytes)
    limit = aim = goal.limit(graph, plain)
    tried: list[tuple[int, Plan, Check]] = []
    while True:
        check = check_step(model, sample, plan, held=goal.budget is not None)
        if not check.ok:
            raise ParityError(
                f"the planned step does not give the plain step's numbers: {'; '.join(check.differences)}. {check.cause}. "
                "The model is as it was; check=False trains without the comparison"
            )
        if _missed(check, plan):  # by what only a first step allocates and later ones use again?
            later = check_step(model, sample, plan).measured_peak_bytes
            check = replace(check, measured_peak_bytes=min(later, check.measured_peak_bytes))
        if limit is None or aim is None:
            break
        peak = check.measured_peak_bytes if goal.budget is None else check.held_peak_bytes
        if peak is None:
            break
        taken = graph.with_resident(peak)
        tried.append((taken, plan, check))
        if taken <= limit or goal.budget is None and not _missed(check, plan):
            break
        aim -= taken - limit
        beside = graph.beside_resident(aim)
        smaller = Budget(aim) if goal.budget is not None else Fraction(max(0, beside + 0.5) / plain)
        try:
            if len(tried) > REPLANS_MOST or beside <= 0:
                raise _exceeded(plan, limit, [m for m, *_ in tried])
            plan = again(smaller)
        except InfeasibleBudget:
            if goal.budget is not None:
                raise _exceeded(plan, limit, [m for m, *_ in tried]) from None
            _, plan, check = min(tried, key=lambda t: t[0])
            break
    if _missed(check, plan):
        took, predicted = format_bytes(check.measured_peak_bytes), format_bytes(plan.activation_peak_bytes)
        notices.warn(
            f"a measured step of {type(model).__name__} takes {took} of activations, and its plan predicts {predicted} "
            f"({check.peak_error:+.1%}): some kernel or copy takes memory that is not known. A budget in bytes is kept by "
            "what is measured"
        )
    plan = _measured(plan if limit is None else _as_asked(plan, goal, limit), check)
    return replace(plan, checked=check), check


def plain_bytes(model: nn.Module, sample: Any, traced: Trace) -> Measured | None:
    """The activation peak of a plain step, measured, the same in every process; None: it is what the graph of the trace says,
    or the step does not fit the device. Eager holds tensors in variables, and makes some that nobody reads."""
    predicted, how = plain_activation_bytes(traced.graph), traced.options

    def measure() -> int | None:
        s = subject(model, sample, None, how.gradients, how.unused)
        with accept.gradients_on(), as_before(model, s.sample.tensors), deterministic():
            made = Steps(s, {"plain": plain_forward(model)}).plain_if_it_fits()
        return None if made is None else made.peak

    question = {"graph_hash": traced.graph.hash, "resident_bytes": traced.graph.resident_bytes}
    found = ranks.once("the plain step's peak", question, measure, lambda peak: peak)
    peak = found.answer if isinstance(found, ranks.Received) else found
    near = peak is None or abs(peak - predicted) <= max(PLAIN_BYTES, MISS_SHARE * predicted)
    return None if near else Measured(peak)


def _missed(check: Check, plan: Plan) -> bool:
    """Whether the measured step takes clearly more than the plan predicts."""
    more = check.measured_peak_bytes - plan.activation_peak_bytes
    return more > max(MISS_BYTES, MISS_SHARE * plan.activation_peak_bytes)


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


def _exceeded(plan: Plan, budget: int, measured: list[int]) -> InfeasibleBudget:
    floor = floor_of(plan.graph, 0)
    bound, op = bound_words(plan.graph, floor, 0)
    least = min(measured)
    return InfeasibleBudget(
        f"{budget_words(budget)} cannot be kept: the plan's predicted peak fits, but the measured "
        f"step takes {format_bytes(least)} ({least} bytes) while results are held, and no "
        f"plan that takes less was found in {len(measured)} tries; no schedule exists below {bound}. The model is as it was. "
        + choices(f"budget={least}"),
        budget=budget, smallest_peak=least, bound_bytes=floor.bytes, op=op,
    )  # fmt: skip
