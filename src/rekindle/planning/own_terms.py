"""Plans of rewritten steps: their figures beside the captured step, as users see them, and beside their own graph, as the judge
and the certificates see them.

A rewritten step that runs each op once may take less memory than the captured one, and other seconds. A user compares with the
captured step; a bound is proven of the graph that is run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..ask import Fraction, Goal, MaxOverhead, PlanOptions
from ..model.graph import COSTS, Graph
from ..model.judge import plain_activation_bytes
from ..model.plan import Plan
from ..model.rewriting import Plain, Rewriting
from ..saying.shares import EPS


def plain_figures(graph: Graph) -> Plain:
    """The figures of a step that runs each op once."""
    seconds, flops, unit = (once(graph, cost) for cost in COSTS)
    return Plain(graph.with_resident(plain_activation_bytes(graph)), seconds, flops, unit)


def once(graph: Graph, cost: str) -> float:
    """The cost of running each needed op once."""
    return float(np.asarray(graph.weights(cost))[graph.needed].sum())


def own_goal(goal: Goal, graph: Graph, plain: Plain, cost: str) -> Goal | None:
    """The goal, stated beside the captured step, as one beside the rewritten step `graph`; None: the rewritten step costs more
    than the goal allows even if it runs each op once."""
    if goal.max_overhead is not None:
        share = _ratio(plain, graph, cost)
        extra = (1 + goal.max_overhead) * share - 1
        return MaxOverhead(max(0.0, extra)) if extra > -EPS else None
    if goal.fraction is not None:
        limit = int(goal.fraction * graph.beside_resident(plain.peak_bytes))
        own = plain_activation_bytes(graph)
        share = (limit + 0.5) / own if own else 1.0  # half a byte more, so that it is rounded back to the limit
        return Fraction(min(1.0, share))
    return goal


def overhead_beside(plain: Plain, graph: Graph, own: float, cost: str) -> float:
    """The overhead beside the captured step of a schedule whose overhead beside the rewritten step's `graph` is `own`."""
    return (1 + own) / _ratio(plain, graph, cost) - 1


def beside_captured(plan: Plan, rewriting: Rewriting, asked: PlanOptions) -> Plan:
    """A plan of a rewritten step, as the planner made it, with its figures beside the captured step. asked : by the user."""
    graph, plain = plan.graph, rewriting.plain
    found = _with_overheads(plan, lambda own, cost: overhead_beside(plain, graph, own, cost))
    return replace(found, goal=asked.goal, asked=asked, rewriting=rewriting, baseline_peak_bytes=plain.peak_bytes)


def in_own_terms(plan: Plan) -> Plan:
    """The plan with its figures beside its own graph, and without a rewriting; a plan of a captured step is that already."""
    if plan.rewriting is None:
        return plan
    graph, plain = plan.graph, plan.rewriting.plain
    goal = own_goal(plan.goal, graph, plain, plan.cost)
    found = _with_overheads(plan, lambda user, cost: (1 + user) * _ratio(plain, graph, cost) - 1)
    baseline = graph.with_resident(plain_activation_bytes(graph))
    return replace(found, goal=goal or plan.goal, rewriting=None, baseline_peak_bytes=baseline, baseline_measured=False)


def _with_overheads(plan: Plan, other: Callable[[float, str], float]) -> Plan:
    """The plan with other overheads. other : gives them, from the one of the plan and the unit of its cost."""
    return replace(
        plan,
        overhead=other(plan.overhead, plan.cost),
        flops_overhead=other(plan.flops_overhead, "flops"),
        least_overhead=max(0.0, other(plan.least_overhead, plan.cost)) if plan.least_overhead else 0.0,
        offer=plan.offer and (plan.offer[0], other(plan.offer[1], plan.cost)),
    )


def _ratio(plain: Plain, graph: Graph, cost: str) -> float:
    """The cost of the captured step, each op once, as a share of the rewritten step's; 1 where nothing costs anything."""
    own, captured = once(graph, cost), float(getattr(plain, cost))
    return captured / own if own and captured else 1.0
