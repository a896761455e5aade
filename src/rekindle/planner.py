"""Graph + options -> Plan: asks a solver for candidates, lets the judge score them, picks one, certifies it."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, replace

from . import bounds, certify, registry, remembered
from .ask import Goal, PlanOptions
from .candidates import Finish, Known, Scored, Scorer, pick, smaller
from .errors import RekindleError
from .infeasible import infeasible, no_such_overhead
from .model.graph import Graph
from .model.held import keeping_results, relaxed, result_values
from .model.plan import Plan
from .model.schedule import Schedule
from .problem import Problem, Solver


@dataclass(frozen=True)
class PlannerSettings:
    """Guesses that served on the benchmark's models.

    usual_s : seconds; a longer time limit makes thorough searches work longer, in proportion.
    results_matter_share : part of the least memory found above which the results of forward are worth a second search.
    named_most : schedules of infeasible budgets that are remembered.
    """

    usual_s: float = 30.0
    results_matter_share: float = 1 / 64
    named_most: int = 64


SETTINGS = PlannerSettings()
# A peak that an error called reachable is reached when it is asked for, even if a clock ends the search:
# (hash of the graph, solver) -> the schedule that the error spoke of.
_named: OrderedDict[tuple[str, str], Schedule] = OrderedDict()


def plan_graph(
    graph: Graph,
    options: PlanOptions,
    *,
    finish: Finish | None = None,
    bookkeeping: int | None = None,
    known: Known | None = None,
) -> Plan:
    """The best plan that the solver finds for the goal.

    finish : turns a schedule into the one that will be run; the judge sees the finished one.
    bookkeeping : bytes beside the graph's. Where they are given, a budget in bytes is kept also by a loop that holds the
        results of forward until the step is over. None: only the judge's peak has to fit.
    known : a schedule for the same request, which is judged and certified in place of a search.

    Where an earlier search for the same is remembered on disk (see `remembered`), its schedule is taken the same way.

    Raises
    ------
    UsageError : unknown solver or cost, or a solver without a plan within the overhead.
    InfeasibleBudget : nothing that the solver finds fits the budget.
    FormatError, RekindleError : `known` is no schedule for the graph, or does not keep the goal.
    """
    start = time.monotonic()
    goal, solver = options.goal, registry.get(options.solver)
    scorer = Scorer(graph, options.cost, finish, bookkeeping if goal.budget is not None else None)
    baseline = scorer.score(Schedule.baseline(graph))
    limit = goal.limit(graph.resident_bytes, baseline.judged.peak_bytes - graph.resident_bytes)
    problem = _problem_of(graph, options, limit, scorer.spare)
    memory = remembered.place("plan", scorer, options, solver) if known is None else None
    if memory is not None:
        known = _recalled(memory, scorer, goal, limit, problem)
    if known is not None:
        best = _judged(known, scorer, goal, limit)
    elif limit is None:
        best = _without_limit(solver, problem, scorer, goal)
    else:
        best = _within_limit(solver, problem, scorer, goal, limit)
    weights = graph.weights(options.cost)
    seconds = certify.seconds_for_bound(start, options.time_limit, solver.thorough)
    bound = None if known is None else certify.proven_again(graph, weights, best, known.bound_bytes)
    if bound is None:
        bound = bounds.best(graph, weights, best.judged.overhead, seconds, best.judged.peak_bytes)
        if solver.thorough:
            left = float("inf") if options.time_limit is None else start + options.time_limit - time.monotonic()
            bound, met = certify.look_longer(graph, weights, best, bound, left)
            # Budgets only: under an overhead goal, allowing more could yield a larger plan.
            if met is not None and limit is not None and solver.joins and known is None:
                best = smaller(best, scorer.score(Schedule.from_runs(graph, met.runs, solver.name)), limit)
    if memory is not None and known is None and not problem.interrupted.is_set():
        memory.keep([(best, bound)])
    optimal = certify.is_optimal(graph, weights, best, bound, goal, limit)
    return as_plan(scorer, best, baseline, options, bound, optimal, time.monotonic() - start)


def _judged(known: Known, scorer: Scorer, goal: Goal, limit: int | None) -> Scored:
    """The candidate for a schedule that was found elsewhere."""
    found = pick([scorer.as_run(known.schedule)], limit, goal.max_overhead)
    if found is None:
        raise RekindleError("a schedule that was found for the same goal does not keep it here; plan again")
    return found


def _recalled(
    memory: remembered.Place, scorer: Scorer, goal: Goal, limit: int | None, problem: Problem
) -> Known | None:
    """The remembered schedule, if there is one and it keeps the goal."""
    for known in memory.recall():
        if pick([scorer.as_run(known.schedule)], limit, goal.max_overhead) is not None:
            problem.progress(remembered.NEWS)
            return known
    return None


def _problem_of(graph: Graph, options: PlanOptions, limit: int | None, spare: int | None) -> Problem:
    """The problem that the solver is asked. Where results are held, it is a step that keeps them; where no schedule fits
    the limit, the smallest one is asked for."""
    if spare is None:
        return make_problem(graph, options, limit if _possible(graph, limit) else None)
    aim = None if limit is None else limit - spare
    return make_problem(keeping_results(graph), options, aim if _possible(relaxed(graph), aim) else None)


def _possible(graph: Graph, limit: int | None) -> bool:
    return limit is not None and limit >= bounds.single_op(graph).bytes


def make_problem(graph: Graph, options: PlanOptions, limit: int | None) -> Problem:
    """The options as a solver takes them; `limit` is a peak in bytes, resident ones included."""
    weights = graph.weights(options.cost)
    if not weights.any():  # a graph without costs in this unit: count op runs, so that fewer is still better
        weights = graph.weights("unit")
    time_limit = options.time_limit
    deadline = None if time_limit is None else time.monotonic() + time_limit - certify.seconds_kept_back(time_limit)
    work = max(1.0, (time_limit or 0.0) / SETTINGS.usual_s) if options.effort == "thorough" else 1.0
    progress = options.report or (lambda _: None)
    return Problem(
        graph, weights, limit, options.goal.max_overhead, options.seed, deadline, progress, options.effort, work
    )


def _without_limit(solver: Solver, problem: Problem, scorer: Scorer, goal: Goal) -> Scored:
    """The smallest candidate within the goal's overhead, or at any cost."""
    found = scorer.all(solver.solve(problem))
    best = pick(found, None, goal.max_overhead)
    if best is None:
        raise no_such_overhead(solver, goal, found)
    found += scorer.all(solver.retry(problem, best.schedule))
    return pick(found, None, goal.max_overhead) or best


def _within_limit(solver: Solver, problem: Problem, scorer: Scorer, goal: Goal, limit: int) -> Scored:
    """The cheapest candidate within the limit."""
    graph = scorer.graph
    found = scorer.all(solver.solve(problem))
    best = pick(found, limit, None)
    if best is not None:
        return best
    # A solver that aims at the budget may stop above its least memory; and a peak that an error calls reachable must be
    # reached when it is asked for.
    smallest = replace(problem, limit=None, max_overhead=None)
    least = scorer.all(solver.solve(smallest)) if problem.limit is not None else found
    if scorer.spare is not None and _results_matter(graph, least):  # some may be made twice before forward ends
        least = least + scorer.all(solver.solve(replace(smallest, graph=graph)))
    key = (graph.hash, solver.name)
    if key in _named:
        least = [*least, scorer.as_run(_named[key])]
    best = pick(least, limit, None)
    if best is None and problem.limit is not None:
        best = pick(scorer.all(solver.retry(problem, None)), limit, None)
    if best is None:
        reached = min(least, key=lambda s: s.needs)
        _remember(key, reached.schedule)
        floor = bounds.look_ahead(graph if scorer.spare is None else relaxed(graph))
        raise infeasible(graph, solver, goal, limit, reached.needs, floor, scorer.spare)
    return best


def _results_matter(graph: Graph, found: list[Scored]) -> bool:
    """Whether the results take so much of the least memory found that a second search is worth its time."""
    results = int(graph.arrays.bytes[result_values(graph)].sum())
    return results > SETTINGS.results_matter_share * (min(s.needs for s in found) - graph.resident_bytes)


def _remember(key: tuple[str, str], schedule: Schedule) -> None:
    _named[key] = schedule
    _named.move_to_end(key)
    if len(_named) > SETTINGS.named_most:
        _named.popitem(last=False)


def as_plan(
    scorer: Scorer, best: Scored, baseline: Scored, options: PlanOptions, bound: bounds.Bound, optimal: bool, seconds: float
) -> Plan:  # fmt: skip
    """The plan of a candidate. seconds : how long solving took."""
    graph, j = scorer.graph, best.judged
    return Plan(
        graph=graph,
        schedule=best.schedule,
        peak_bytes=j.peak_bytes,
        activation_peak_bytes=j.peak_bytes - graph.resident_bytes,
        baseline_peak_bytes=baseline.judged.peak_bytes,
        seconds=j.seconds,
        overhead=j.overhead,
        flops_overhead=j.flops_overhead,
        solver=options.solver,
        status="optimal" if optimal else "feasible",
        bound_bytes=bound.bytes,
        bound_op="" if bound.op is None else graph.ops[bound.op].name,
        gap=(j.peak_bytes - bound.bytes) / j.peak_bytes if j.peak_bytes else 0.0,
        graph_hash=graph.hash,
        goal=options.goal,
        cost=options.cost,
        solve_seconds=seconds,
        asked=options,
    )
