"""The plan of a trace, as it stands or rewritten where that serves, one for all processes of a distributed run; and the bytes
that its step takes beside the storages of its graph.

The first process that asks makes the plan, the others judge and certify its schedule. Where a loop could let go of gradients,
it is said what that would save.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from ...ask import Fraction, PlanOptions
from ...errors import InfeasibleBudget, PlanMismatch, RekindleError, UsageError
from ...estimates.estimate import BLOCK_BYTES
from ...model import formats
from ...model.graph import Graph
from ...model.judge import plain_activation_bytes, simulate
from ...model.plan import Plan
from ...model.rewriting import Rewriting, steps_from_json
from ...model.schedule import Schedule
from ...planning.candidates import Known
from ...planning.infeasible import DEFAULT_SOLVER
from ...planning.own_terms import beside_captured, plain_figures
from ...planning.planner import plan_graph
from ...planning.variants import CLOSE, Choice, goal_of
from ...saying.sizes import format_bytes
from ..costs.link import link_of
from ..costs.node_costs import costs_from_json, with_costs
from ..operators import rules
from ..operators.node_tensors import tensors_of
from ..rewrite.closeness import marked, sums
from ..rewrite.family import Make, TraceFamily
from ..rewrite.probe import Bits
from ..rewrite.rewritten import with_rewrites
from ..run import stages
from ..tensors import ranks
from ..trace import Trace

# Scalars that are alive at once, each in a block of CUDA's allocator: the loss and its gradient, and two more while a loss is
# added up from several results.
SCALARS = 4
GENERATOR_BYTES = 5056  # the state of the CPU's random generator, which is saved if a random op runs again (measured)
GRADIENTS_SAID_SHARE = 0.01  # of the peak: a smaller saving by another choice of `gradients` is not said. A guess


def bookkeeping(trace: Trace) -> int:
    """Bytes that a step may take beside the storages of its graph. (The tokens between stages are empty.)"""
    nodes = [c.node for c in trace.lowered.calls if c.node is not None and rules.draws_random(c.node.target)]
    on_cpu = any(t.device.type == "cpu" for n in nodes for _, t in tensors_of(n))
    return BLOCK_BYTES * SCALARS + (GENERATOR_BYTES if on_cpu else 0)


def plan_trace(traced: Trace, options: PlanOptions, make: Callable[..., Plan]) -> Plan:
    """The plan of a trace. Every process gets it that asks for the same: the same graph, resident bytes and options.

    Costs of ops are no part of the question: they may differ from process to process, and those of the process that makes the
    plan count for all. make : called like `plan_graph`, in one process.

    Raises
    ------
    InfeasibleBudget, UsageError : as `make`, in each process alike.
    RekindleError : the process that makes the plan failed.
    """
    spare, graph = bookkeeping(traced), with_link(traced, options)
    plain: int | None = traced.as_captured.plain_bytes
    if plain is None and traced.origin is not None:
        plain = plain_activation_bytes(traced.origin.graph)
    how: dict[str, Any] = {"finish": stages.finish(traced.lowered), "bookkeeping": spare, "plain_bytes": plain}

    def first() -> Plan:
        return traced.with_graph(graph).planned(lambda graph: make(graph, options, **how))

    more = {"spare_bytes": spare, "plain_bytes": plain, "target": traced.options.target, "fake": traced.fake}
    found = ranks.once("the plan", question_of(graph, options, more), first, _document, options.report)
    if isinstance(found, ranks.Received):
        where = "the plan of another process"
        r = formats.Reader(found.answer, where)
        schedule = formats.schedule_from_json(r.table("schedule"), where)
        costs = costs_from_json(r.items("costs"), len(graph.ops), where)
        known = Known(schedule, r.whole("bound_bytes"))
        if r.doc.get("link") is not None:
            graph = replace(graph, link=formats.link_from_json(r.doc["link"], where))
        found = plan_graph(with_costs(graph, range(len(graph.ops)), costs), options, known=known, **how)
    return replace(found, trace=traced.with_graph(found.graph))


def with_link(traced: Trace, options: PlanOptions) -> Graph:
    """The graph of the trace, with the link of its device to the host where these options ask for copies; there is none where
    the device is the host itself and offload="auto"."""
    if not options.offload:
        return traced.graph
    device, target = traced.lowered.captured.device, traced.options.target
    here = device.type == "cpu" and not traced.fake
    none = here and target is None and options.offload == "auto"
    return replace(traced.graph, link=None if none else link_of(device, target, traced.fake))


def question_of(graph: Graph, options: PlanOptions, more: dict[str, Any]) -> dict[str, Any]:
    """The question that processes ask which want one plan, as JSON. more : all else on which the plan depends."""
    return {
        "graph_hash": graph.hash, "resident_bytes": graph.resident_bytes, "goal": options.goal.to_json(),
        "solver": options.solver, "cost": options.cost, "effort": options.effort, "time_limit": options.time_limit,
        "seed": options.seed, "parity": options.parity, "offload": options.offload, "host_budget": options.host_budget, **more,
    }  # fmt: skip


def _document(plan: Plan) -> dict[str, Any]:
    schedule = plan.schedule
    return {
        "schedule": {
            "format": formats.schedule_format(schedule), "graph_hash": schedule.graph_hash, "solver": schedule.solver,
            "steps": formats.steps_to_json(schedule),
        },
        "bound_bytes": plan.bound_bytes,
        "link": None if plan.graph.link is None else asdict(plan.graph.link),
        "costs": [[o.seconds, o.flops, o.workspace] for o in plan.graph.ops],
    }  # fmt: skip


def with_gradients_said(traced: Trace, make: Callable[[], Plan]) -> Plan:
    """The plan of a budget in bytes, whose trace says what another choice of `gradients` would save with the same schedule.

    Raises
    ------
    InfeasibleBudget : as `make`; the message says how many bytes of gradients count from the start of the step.
    """
    if traced.options.gradients != "kept":
        return make()
    try:
        plan = make()
    except InfeasibleBudget as e:
        e.args = (
            f"{e}. {format_bytes(traced.gradient_bytes)} of gradients count from the start of the step; if the loop sets them "
            'to None before each step, gradients="fresh" counts each one from when it is made',
        )
        raise
    words, peak = [], plan.peak_bytes
    for how in ("fresh", "consumed"):
        other = _peak_with(plan, how)
        if peak - other >= GRADIENTS_SAID_SHARE * plan.peak_bytes:
            words.append(f'gradients="{how}" would take {format_bytes(plan.peak_bytes - other)} less')
            peak = other
    return replace(plan, trace=replace(plan.trace, saved=", ".join(words)))


def _peak_with(plan: Plan, gradients: str) -> int:
    graph = plan.trace.with_gradients(gradients).graph
    return simulate(graph, Schedule.from_runs(graph, plan.schedule.runs, plan.schedule.solver)).peak_bytes


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
