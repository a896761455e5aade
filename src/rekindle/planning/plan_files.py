"""Reads plans from files and trusts none of their figures: the judge scores the schedule again, bounds are proven again."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ..ask import Goal, PlanOptions
from ..errors import FormatError, UsageError
from ..model import formats, options_file
from ..model.graph import COSTS, Graph
from ..model.judge import simulate
from ..model.plan import Plan
from ..model.rewriting import from_json as rewriting_from_json
from ..model.schedule import Schedule
from ..printed import value
from ..saying.shares import EPS
from . import certify
from .own_terms import in_own_terms

FILE_EPS = 2 * EPS  # the planner has allowed one of it


# A plan file beyond these limits is refused: no plan that Rekindle writes comes near them.
JUDGED_VALUES_MOST = 10**9  # that the judge looks at for the schedule: seconds of its time
STEP_MOST_BYTES = 2**62  # made over all runs; sums of bytes stay exact below
SOLVE_MOST_S = 1e9
SOLVER_MOST_LETTERS = 64


def from_text(text: str, where: str) -> Plan:
    """The plan of a text that holds what a plan file holds, checked as `parts.files.load` says.

    where : names the text in errors.

    Raises
    ------
    FormatError : as `parts.files.load`.
    """
    return from_document(formats.parse_json(text, where), where)


def from_document(doc: Any, where: str) -> Plan:
    """The plan of a document `rekindle.plan/1`, checked as `parts.files.load` says. where : names the document in errors.

    Raises
    ------
    FormatError : as `parts.files.load`.
    """
    r = formats.Reader(doc, where, formats.PLAN)
    return plan_from_json(doc, where, formats.graph_from_json(r.table("graph"), f"{where}: graph"))


def plan_from_json(doc: Any, where: str, graph: Graph) -> Plan:
    """The plan of a `rekindle.plan/1` document for this graph, checked as `parts.files.load` says.

    where : names the document in errors.

    Raises
    ------
    FormatError : as `parts.files.load`.
    """
    r = formats.Reader(doc, where, formats.PLAN)
    schedule = formats.schedule_from_json(r.table("schedule"), f"{where}: schedule")
    try:
        goal = Goal.from_json(r.table("goal"))
    except UsageError as e:
        raise FormatError(f"{where}: {e}") from None
    asked = PlanOptions(goal, r.text("solver"), r.text("cost"))
    asked, captured = options_file.from_json(formats.Reader(r.table("options", {}), f"{where}: options"), asked)
    rewriting = None
    if "rewriting" in r.doc:
        rewriting = rewriting_from_json(formats.Reader(r.table("rewriting"), f"{where}: rewriting"))
    plan = Plan(
        graph, schedule, r.whole("peak_bytes"), r.whole("activation_peak_bytes"), r.whole("baseline_peak_bytes"),
        r.number("seconds"), r.number("overhead"), r.number("flops_overhead"), r.text("solver"), r.text("status"),
        r.whole("bound_bytes"), r.text("bound_op"), r.number("gap"), r.text("graph_hash"), goal, r.text("cost"),
        r.number("solve_seconds"), {k: str(v) for k, v in r.table("created_with").items()},
        asked=asked, captured=captured, least_overhead=r.number("least_overhead", 0.0),
        rewriting=rewriting, host_bytes=r.whole("host_bytes", 0), moved_bytes=r.whole("moved_bytes", 0),
        baseline_measured=r.doc.get("baseline_measured") is True, stays_plain=r.doc.get("stays_plain") is True,
    )  # fmt: skip
    own = in_own_terms(plan)
    wrong = _wrong_in_itself(own) or _not_as_judged(own)
    if wrong:
        raise FormatError(f"{where} is inconsistent: {wrong}; make the plan again")
    return replace(plan, verified=certify.holds(plan))


def is_solver_name(text: str) -> bool:
    """Whether a text from a file can be a solver's name."""
    return 0 < len(text) <= SOLVER_MOST_LETTERS and text.isprintable()


def runs_too_much(graph: Graph, schedule: Schedule) -> bool:
    """Whether a schedule that comes from a file runs more than any step does, so that the judge should not look at it."""
    edges = [len(o.inputs) + len(o.outputs) + len(o.inplace) + 1 for o in graph.ops]
    made = [sum(graph.values[v].bytes for v in o.outputs) + o.workspace + 1024 for o in graph.ops]
    ran = [i for i in schedule.runs if 0 <= i < len(graph.ops)]
    return sum(edges[i] for i in ran) > JUDGED_VALUES_MOST or sum(made[i] for i in ran) >= STEP_MOST_BYTES


def _wrong_in_itself(plan: Plan) -> str:
    """The first contradiction among the figures of a plan, whatever its schedule; "" where there is none."""
    peak, bound, (limit, most) = plan.peak_bytes, plan.bound_bytes, plan.aim
    if plan.cost not in COSTS:
        return f"its cost {value(plan.cost)} is none of {', '.join(COSTS)}"
    if plan.status not in ("optimal", "feasible"):
        return f"its status {value(plan.status)} is neither optimal nor feasible"
    if not is_solver_name(plan.solver):
        return f"{value(plan.solver)} is no solver's name"
    if not 0 <= plan.solve_seconds <= SOLVE_MOST_S:
        return f"no solver takes {plan.solve_seconds:g} seconds"
    if not 0 <= bound <= peak:
        return f"its bound {bound} does not lie between 0 and its peak {peak}"
    if not math.isclose(plan.gap, (peak - bound) / peak if peak else 0.0, rel_tol=1e-9, abs_tol=1e-12):
        return f"its gap {plan.gap:g} is not that between its bound and its peak"
    if not 0 <= plan.least_overhead <= max(0.0, plan.overhead) + FILE_EPS:
        return f"its least overhead {plan.least_overhead:g} does not lie between 0 and its overhead {plan.overhead:g}"
    if plan.bound_op and all(o.name != plan.bound_op for o in plan.graph.ops):
        return f"its bound is set by an op {value(plan.bound_op)} that its graph does not have"
    if most is not None and plan.overhead > most + FILE_EPS:
        return f"its overhead {plan.overhead:g} is above its goal {most:g}"
    if (plan.options.offload or plan.schedule.moves) and plan.cost != "seconds":
        return f"it weighs copies to the host in seconds, and its cost is {plan.cost}"
    if plan.host_bytes > plan.options.host_bytes:
        return f"the host holds {plan.host_bytes} bytes, above its host budget {plan.options.host_bytes}"
    if limit is not None and peak > limit:
        return f"its peak {peak} is above its goal {limit}"
    return ""


def _not_as_judged(plan: Plan) -> str:
    """How the figures of a plan differ from the judge's; "" where they do not.

    Raises
    ------
    FormatError : the schedule is none for the graph.
    """
    graph, schedule = plan.graph, plan.schedule
    if runs_too_much(graph, schedule):
        return "its schedule runs more than any step does"
    judged = simulate(graph, schedule, plan.cost)
    baseline = simulate(graph, Schedule.baseline(graph), plan.cost)
    plain = baseline.peak_bytes if plan.baseline_measured else plan.baseline_peak_bytes
    same = (
        plan.graph_hash, plan.peak_bytes, plan.activation_peak_bytes, plain, plan.host_bytes, plan.moved_bytes,
    ) == (
        graph.hash, judged.peak_bytes, graph.beside_resident(judged.peak_bytes), baseline.peak_bytes, judged.host_bytes,
        judged.moved_bytes,
    )  # fmt: skip
    figures = (
        (plan.seconds, judged.seconds),
        (plan.overhead, judged.overhead),
        (plan.flops_overhead, judged.flops_overhead),
    )
    if not same or not all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in figures):
        return "its figures differ from its schedule's"
    return ""
