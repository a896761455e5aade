"""A plan for a graph that is like one planned before: an earlier schedule where it keeps the goal, else a quick search.

In the middle of a run a training loop waits for the answer, so no long search is made here, whatever `effort` the first plan
was made with.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import bounds
from ..ask import PlanOptions
from ..errors import InfeasibleBudget
from ..model.graph import Graph
from ..model.plan import Plan
from ..model.schedule import Schedule
from ..saying.shares import EPS
from . import registry
from .candidates import Finish, PlanRequest, Scored, Scorer, pick
from .certify import Certificate
from .offloading import Offloading
from .planner import as_plan, plan_graph

CARRIED, SEARCHED, ANOTHER_GRAPH, RECEIVED = "carried over", "searched", "searched for another graph", "received"


SEARCH_MOST_S = 1.0  # of a search where no earlier schedule serves; a guess
# Where least memory is asked for: part by which the activation peak, as a share of the plain step's, may exceed the share of
# the plan that the schedule comes from. A guess.
LARGER_SHARE = 0.02


@dataclass(frozen=True)
class Replanned:
    """A plan made in the middle of a run.

    how : `CARRIED`, `SEARCHED` (no known schedule keeps the goal), `ANOTHER_GRAPH` (no known plan is of a graph like this), or
        `RECEIVED` (another process of a distributed run had made the plan).
    """

    plan: Plan
    how: str


def replan_graph(graph: Graph, options: PlanOptions, known: Sequence[Plan], **given: Any) -> Replanned:
    """A plan for the goal, from the schedule of a known plan where one keeps the goal on this graph, else from a quick search.

    known : plans of any graphs; those of graphs that are not `alike` are passed over. given : keywords of `carried_plan`.

    Raises
    ------
    UsageError, InfeasibleBudget : as `plan_graph`, which is asked with the user's own options before a budget is refused.
    """
    found = carried_plan(graph, options, known, **given)
    if found is not None:
        return Replanned(found, CARRIED)
    most = SEARCH_MOST_S if options.time_limit is None else min(options.time_limit, SEARCH_MOST_S)
    quick = replace(options, effort="quick", time_limit=most)
    try:
        plan = plan_graph(graph, quick, **given)
    except InfeasibleBudget as e:
        if e.bound_bytes > e.budget:
            raise  # no search can do better
        plan = plan_graph(graph, options, **given)
    how = SEARCHED if any(alike(p.graph, graph) for p in known) else ANOTHER_GRAPH
    return Replanned(replace(plan, asked=options), how)


def carried_plan(
    graph: Graph,
    options: PlanOptions,
    known: Sequence[Plan],
    *,
    finish: Finish | None = None,
    bookkeeping: int | None = None,
    plain_bytes: int | None = None,
) -> Plan | None:
    """The plan that carries over the schedule which serves the goal best on this graph; None: none keeps the goal.

    The judge scores every known schedule here. A budget in bytes is kept with the results held, as `plan_graph` keeps it; a
    fraction is one of this graph's own plain peak. A small shape may run plain within a budget in bytes. The schedules that
    the searches for those plans came across are looked at too where no plan's schedule serves, or where one costs something
    within a budget in bytes, which asks less of a smaller shape. The certificate is the plainest one: it looks at single ops
    alone.
    """
    start = time.monotonic()
    like = [p for p in known if alike(p.graph, graph)]
    if not like:
        return None
    scorer, baseline, aim = PlanRequest.of(graph, options, finish, bookkeeping, plain_bytes)
    largest = float("inf")
    if options.goal.least_memory:
        largest = graph.with_resident(_largest_share(like) * scorer.plain_of(baseline.judged))
    # Known schedules are finished already. Dozens of lengths share a few.
    runs = {tuple(p.schedule.runs): p.schedule.solver for p in like}
    found = [baseline, *(scorer.as_run(Schedule.from_runs(scorer.graph, r, solver)) for r, solver in runs.items())]

    def best() -> Scored | None:
        small = [s for s in found if s.judged.peak_bytes <= largest]
        chosen = pick(small, aim)
        if not options.offload or graph.link is None:
            return chosen
        copied = Offloading(scorer, aim, options.host_bytes).among(found, chosen)
        return None if copied is None or copied.judged.peak_bytes > largest else copied

    chosen = best()
    if chosen is None or options.goal.budget is not None and chosen.judged.overhead > EPS:
        found += _come_across(scorer, like)
        chosen = best()
    if chosen is None:
        return None
    proven = Certificate(bounds.single_op(graph), False)
    return as_plan(scorer, chosen, baseline, options, proven, time.monotonic() - start)


def _come_across(scorer: Scorer, like: Sequence[Plan]) -> Iterator[Scored]:
    """Schedules that the searches for the known plans found at other points of the curve, on this graph."""
    for name, graph_hash in dict.fromkeys((p.solver, p.graph_hash) for p in like):
        for runs in registry.get(name).known(graph_hash):
            yield scorer.score(Schedule.from_runs(scorer.graph, runs, name))


def _largest_share(like: Sequence[Plan]) -> float:
    """The largest activation peak, as a part of the plain one, that still counts as least memory on another shape."""
    shares = [p.activation_peak_bytes / max(1, p.baseline_activation_bytes) for p in like]
    return min(shares) * (1 + LARGER_SHARE)


def alike(one: Graph, other: Graph) -> bool:
    """Whether two graphs differ in sizes and costs alone: a step of one module for two lengths or batches, say.

    Both have the same ops in the same order, with equal kinds, operators, modules, edges and flags, and they keep the same
    values. Ops that say neither kind nor operator must have equal names. Shapes in names may differ. O(edges).
    """
    return one.pattern == other.pattern


def carried(schedule: Schedule, source: Graph, target: Graph) -> Schedule | None:
    """The schedule of `source` as one of `target`, with the same runs in the same order; None: the graphs are not `alike`.

    Values are freed after their last use and overwritten where that is safe in `target`. The judge says what the schedule
    holds and costs there: memory that one shape needs little of may be most of another's. O(steps + edges).
    """
    if not alike(source, target):
        return None
    return Schedule.from_runs(target, schedule.runs, schedule.solver)
