"""Confirms a plan by a measured step, and makes another one if the step exceeds a budget in bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ... import notices
from ...candidates import EPS
from ...certify import Claim, least_overhead
from ...errors import InfeasibleBudget, ParityError
from ...infeasible import bound_words, choices, floor_of
from ...model.plan import Plan
from ...own_terms import beside_captured, in_own_terms
from ...sizes import format_bytes
from ..capture import rules
from ..capture.node_tensors import tensors_of
from ..trace import Trace
from .verify import Check, check_step


@dataclass(frozen=True)
class ConfirmSettings:
    """Memory beside the graph's storages, and how often a plan is made again.

    block_bytes : the smallest block of CUDA's allocator, which a scalar takes too (PyTorch's constant).
    scalars : scalars alive at once: the loss and its gradient, and two more while a loss is added up from several results.
    generator_bytes : the state of the CPU's random generator, which is saved if a random op runs again (measured).
    replans_most : plans that are made anew because a measured step took more than the budget (a guess).
    """

    block_bytes: int = 512
    scalars: int = 4
    generator_bytes: int = 5056
    replans_most: int = 2


SETTINGS = ConfirmSettings()


def bookkeeping(trace: Trace) -> int:
    """Bytes that a step may take beside the storages of its graph. (The tokens between stages are empty.)"""
    nodes = [c.node for c in trace.lowered.calls if c.node is not None and rules.draws_random(c.node.target)]
    on_cpu = any(t.device.type == "cpu" for n in nodes for _, t in tensors_of(n))
    return SETTINGS.block_bytes * SETTINGS.scalars + (SETTINGS.generator_bytes if on_cpu else 0)


def confirm(model: nn.Module, sample: Any, plan: Plan, again: Callable[[int], Plan]) -> tuple[Plan, Check]:
    """(a plan that a measured step confirms, the check of that step).

    The planned step gives the plain step's numbers. If the goal is a budget in bytes, the step also stays within it in a loop
    that holds the results; if it takes more, plans for smaller budgets are tried.

    again : function from a budget in bytes to another plan of the same trace.

    Raises
    ------
    ParityError : a planned step does not give the plain step's numbers.
    InfeasibleBudget : no step stayed within the budget; the error names the smallest peak that was measured.
    """
    budget = plan.goal.budget
    aim, measured = budget, []
    while True:
        check = check_step(model, sample, plan, held=budget is not None)
        if not check.ok:
            raise ParityError(
                f"the planned step does not give the plain step's numbers: {'; '.join(check.differences)}. {check.cause}. "
                "The model is as it was; check=False trains without the comparison"
            )
        if budget is None or aim is None or check.held_peak_bytes is None:
            return _measured(plan, check), check
        measured.append(check.held_peak_bytes + plan.graph.resident_bytes)
        if measured[-1] <= budget:
            return _measured(_as_asked(plan, budget), check), check
        aim -= measured[-1] - budget
        if len(measured) > SETTINGS.replans_most or aim <= 0:
            raise _exceeded(plan, budget, measured)
        try:
            plan = again(aim)
        except InfeasibleBudget as e:
            raise _exceeded(plan, budget, measured) from e


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


def _as_asked(plan: Plan, budget: int) -> Plan:
    """The plan with the user's budget as its goal, not the smaller one that was aimed at; later plans are made for it too.

    A plan within the user's budget may cost less than every plan within the smaller one: the certificate is made again.
    """
    if budget == plan.goal.budget:
        return plan
    own = in_own_terms(plan)
    claim = Claim(own.graph, own.graph.weights(own.cost), own.goal, budget, own.peak_bytes, own.overhead)
    least = least_overhead(claim, (0.0,))
    asked = replace(plan.options, goal=replace(plan.goal, budget=budget))
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
        f"budget {format_bytes(budget)} ({budget} bytes) cannot be kept: the plan's predicted peak fits, but the measured "
        f"step takes {format_bytes(least)} ({least} bytes) while results are held, and no "
        f"plan that takes less was found in {len(measured)} tries; no schedule exists below {bound}. The model is as it was. "
        + choices(f"budget={least}"),
        budget=budget, smallest_peak=least, bound_bytes=floor.bytes, op=op,
    )  # fmt: skip
