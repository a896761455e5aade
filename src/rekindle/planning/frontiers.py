"""Graph + options -> the memory/cost curve as plans, none dominated by another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .. import bounds
from ..ask import Aim, Budget, LeastMemory, PlanOptions
from ..model.graph import Graph
from ..model.plan import Plan
from ..model.schedule import Schedule
from ..problem import Problem, Solver
from ..saying.progress import announce
from ..saying.shares import EPS
from . import registry, remembered
from .candidates import Finish, Scored, Scorer, pareto, thin
from .certify import Certificate
from .planner import as_plan, make_problem

# Guesses that served on the benchmark's models.
BUDGETS = 12  # asked of solvers that find one plan at a time; a curve holds at most twice as many plans
CLOSER_MOST_OPS = 400  # up to which a closer look at the low end of the curve is worth twice the time of all the rest


def frontier_graph(graph: Graph, options: PlanOptions, *, finish: Finish | None = None) -> list[Plan]:
    """Plans from least cost to least memory, none dominated by another, in order of falling peak.

    The goal of the options is not looked at; each plan's own goal is the budget of its peak. Arguments as `plan_graph`.
    """
    start = time.monotonic()
    solver = registry.get(options.solver)
    anything = replace(options, goal=LeastMemory())
    scorer = Scorer(graph, options.cost, finish)
    baseline = scorer.score(Schedule.baseline(graph))
    memory = remembered.place("frontier", scorer, anything, solver)
    earlier = [] if memory is None else [scorer.as_run(known.schedule) for known in memory.recall()]
    if earlier and options.report is not None:
        options.report(remembered.NEWS)
    asked: list[Problem] = []
    kept = thin(pareto(earlier or _found(solver, scorer, anything, baseline, asked)), 2 * BUDGETS)
    announce(options.progress, f"proving bounds for {len(kept)} plans")
    weights = graph.weights(options.cost)
    certified = bounds.at_overheads(graph, weights, [s.judged.overhead for s in kept])
    if memory is not None and not earlier and not any(p.interrupted.is_set() for p in asked):
        memory.keep(zip(kept, certified, strict=True))
    once = float(weights[graph.needed].sum()) or 1.0
    least = bounds.extras_at(graph, weights, [s.judged.peak_bytes for s in kept])
    seconds = time.monotonic() - start
    plans = []
    for s, bound, extra in zip(kept, certified, least, strict=True):
        aim = replace(options, goal=Budget(s.judged.peak_bytes))
        optimal = s.judged.overhead <= extra / once + EPS
        proven = Certificate(bound, optimal, min(extra / once, max(0.0, s.judged.overhead)))
        plans.append(as_plan(scorer, s, baseline, aim, proven, seconds))
    return plans


def _found(
    solver: Solver, scorer: Scorer, options: PlanOptions, baseline: Scored, asked: list[Problem]
) -> list[Scored]:
    """The solver's candidates for the whole curve. asked : is extended by the problems that the solver was given."""
    graph = scorer.graph
    top = graph.beside_resident(baseline.judged.peak_bytes)
    bottom = max(0, graph.beside_resident(bounds.single_op(graph).bytes))
    coarse = len(graph.ops) > CLOSER_MOST_OPS
    asked.append(replace(make_problem(graph, options, Aim()), whole=True, coarse=coarse))
    with asked[-1].interruptible():
        announce(options.progress, f"searching for the curve of {len(graph.ops):,} ops")
    found = scorer.all(solver.solve(asked[-1]))
    count = BUDGETS
    shared = replace(options, time_limit=None if options.time_limit is None else options.time_limit / count)
    fractions: Sequence[float] = np.linspace(1, 0, count + 1)[1:].tolist() if top > bottom else [0.0]
    seen: set[tuple[int, ...]] = set()
    for f in () if solver.curve else fractions:
        limit = graph.with_resident(int(bottom + f * (top - bottom))) if f > 0 else None
        asked.append(make_problem(graph, shared, Aim(limit)))
        schedules = list(solver.solve(asked[-1]))
        key = tuple(hash(s) for s in schedules)
        if key in seen:  # a solver without a knob gives the same answer to every question
            break
        seen.add(key)
        found += scorer.all(schedules)
    return found
