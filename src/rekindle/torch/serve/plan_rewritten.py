"""The plan of a trace, rewritten where that serves; one process of a distributed run chooses the rewrites for all."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...ask import Fraction, PlanOptions
from ...errors import InfeasibleBudget, PlanMismatch, RekindleError, UsageError
from ...model.plan import Plan
from ...model.rewriting import Rewriting, steps_from_json
from ...planning.infeasible import DEFAULT_SOLVER
from ...planning.own_terms import beside_captured, plain_figures
from ...planning.variants import CLOSE, Choice, goal_of
from ..rewrite.closeness import marked, sums
from ..rewrite.family import Make, TraceFamily
from ..rewrite.probe import Bits
from ..rewrite.rewritten import with_rewrites
from ..tensors import ranks
from ..trace import Trace
from .plan_trace import question_of


def plan_rewritten(traced: Trace, options: PlanOptions, make: Make) -> Plan:
    """The best plan of the captured step or of a rewrite of it. make : plans a trace, for options in its own terms.

    Raises
    ------
    InfeasibleBudget, UsageError : as `make`; an infeasible budget is refused with the smallest peak of all candidates.
    """
    if options.solver != DEFAULT_SOLVER or options.goal == Fraction(1.0):
        return make(traced, options)
    choice = Choice(TraceFamily(traced, options, make), options, traced.plain_bytes)
    question = question_of(traced.graph, options, {"target": traced.options.target, "fake": traced.fake})
    # One process chooses for all: what a probe or a bound finds within its limits may differ from process to process.
    found = ranks.once("the graph of the plan", question, choice.best, _steps_of, options.report)
    if not isinstance(found, ranks.Received):
        return found
    steps = steps_from_json(found.answer, "the rewrites of another process")
    if not steps:
        return make(traced, options)
    made = choice.plan(steps)
    if made is None:
        raise RekindleError(
            "the rewrites that another process chose do not fit here; use one version of Rekindle in all processes"
        )
    return made


def _steps_of(plan: Plan) -> list[Any]:
    """The rewrites of a plan as JSON."""
    return [] if plan.rewriting is None else plan.rewriting.to_json()["steps"]


def rewritten_alike(traced: Trace, options: PlanOptions, known: Sequence[Plan], make: Make) -> Plan:
    """The plan of the step, rewritten as the step of a known plan was where that serves; else of the captured step.

    No other rewrites are looked for: a training loop waits.
    """
    plain = None
    bits = Bits(table=traced.fake)
    for steps in dict.fromkeys(p.rewriting.steps for p in known if p.rewriting is not None):
        try:
            made = with_rewrites(traced, steps, bits)
        except PlanMismatch:  # another graph, or sizes that cannot be cut so
            continue
        bits.save()
        if options.parity != CLOSE and marked(made.lowered.captured):  # slices of this size give other bits
            continue
        made = made.costed(traced.options.target, options.report, measure=False)
        plain = plain or plain_figures(traced.graph)
        goal = goal_of(made.graph, plain, options)
        if goal is not None:
            rewriting = Rewriting(traced.graph.hash, plain, steps, sums(made.lowered.captured))
            with contextlib.suppress(InfeasibleBudget, UsageError):
                return beside_captured(make(made, replace(options, goal=goal)), rewriting, options)
    return make(traced, options)
