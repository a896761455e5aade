"""Graph + options -> Plan: asks a solver for candidates, lets the judge score them, picks one, certifies it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from .. import allowance, bounds
from ..ask import Aim, Goal, PlanOptions
from ..errors import InfeasibleBudget, RekindleError, UsageError
from ..model.graph import Graph
from ..model.held import keeping_results, result_values
from ..model.plan import Plan
from ..model.schedule import Schedule
from ..problem import Problem, Solve, Solver
from ..saying.progress import announce
from ..saying.shares import EPS, percent
from ..saying.sizes import format_bytes
from . import certify, registry, remembered
from .candidates import Finish, Known, Measured, PlanRequest, Scored, Scorer, pick, smaller
from .infeasible import floor_of, infeasible, infeasible_with_copies, no_such_overhead
from .offloading import Offloading

# Guesses that served on the benchmark's models.
USUAL_S = 30.0  # a longer time limit makes thorough searches work longer, in proportion
RESULTS_MATTER_SHARE = 1 / 64  # of the least memory found, above which the results of forward are worth a second search
NAMED_MOST = 64  # schedules of infeasible budgets that are remembered
ASKED_MOST = 3  # searches for one budget, each for less where finished schedules take more than their solver thought
WITHOUT_COPIES_SHARE = 0.7  # of a time limit, for the plan without copies to the host; the rest is for copies
STEEP_OVERHEAD = 0.3  # of a plan within a budget, from which a larger budget is offered
OFFER_REACH = 1.5  # times the memory, at most, that the offered budget takes
OFFER_SHARE = 0.5  # of the overhead, at most, that it costs

# A peak that an error called reachable is reached when it is asked for, even if a clock ends the search:
# (hash of the graph, solver, bytes spared beside results that are held, or None where none are) -> the smallest schedule that
# an error spoke of, or that a plan of least memory has.
_named: OrderedDict[tuple[str, str, int | None], Schedule] = OrderedDict()


def plan_graph(
    graph: Graph,
    options: PlanOptions,
    *,
    finish: Finish | None = None,
    bookkeeping: int | None = None,
    plain_bytes: int | None = None,
    known: Known | None = None,
    interrupted: threading.Event | None = None,
    proves: bool = True,
) -> Plan:
    """The best plan that the solver finds for the goal.

    finish : turns a schedule into the one that will be run; the judge sees the finished one.
    bookkeeping : bytes beside the graph's. Where they are given, a budget in bytes is kept also by a loop that holds the
        results of forward until the step is over. None: only the judge's peak has to fit.
    plain_bytes : as in `Scorer`.
    known : a schedule for the same request, which is judged and certified in place of a search.
    interrupted : as in `Problem`, where this search is part of another one. proves : whether bounds are looked for; of an
        effort that betters plans by its bounds they are in any case.

    Where an earlier search for the same is remembered on disk (see `remembered`), its schedule is taken the same way.

    Raises
    ------
    UsageError : unknown solver or cost, or a solver without a plan within the overhead.
    InfeasibleBudget : nothing that the solver finds fits the budget.
    FormatError, RekindleError : `known` is no schedule for the graph, or does not keep the goal.
    """
    start = time.monotonic()
    solver = registry.get(options.solver)
    request = PlanRequest.of(graph, options, finish, bookkeeping, plain_bytes)
    scorer, baseline, aim = request
    if options.offload:
        how: dict[str, Any] = {"finish": finish, "bookkeeping": bookkeeping, "plain_bytes": plain_bytes}
        return _offloaded(options, solver, request, known, partial(plan_graph, graph, **how))
    problem = _problem_of(scorer, options, aim)
    problem = problem if interrupted is None else replace(problem, interrupted=interrupted)
    with problem.interruptible():
        announce(options.progress, f"searching for a plan of {len(graph.ops):,} ops")
    memory = remembered.place("plan", scorer, options, solver) if known is None else None
    recalled = [] if memory is None else memory.recall()
    if memory is not None:
        known = _recalled(recalled, scorer, aim, problem)
    smallest: int | None = None
    if known is not None:
        best = _judged(known, scorer, aim)
    elif aim.limit is None:
        best, smallest = _without_limit(solver, problem, request)
    else:
        best, smallest = _within_limit(solver, problem, scorer, options.goal, aim.limit)
    weights = graph.weights(options.cost)
    thorough = solver.thorough and options.effort == "thorough"
    if not (proves or thorough):
        nothing = certify.Certificate(bounds.single_op(graph), False)
        return as_plan(scorer, best, baseline, options, nothing, time.monotonic() - start)
    j = best.judged
    announce(options.progress, f"proving bounds for the plan of {format_bytes(j.peak_bytes)} at {percent(j.overhead)}")
    seconds = certify.seconds_for_bound(start, options.time_limit, thorough)
    bound = None if known is None else certify.proven_again(graph, weights, best, known.bound_bytes)
    if bound is None:
        bound = bounds.best(graph, weights, best.judged.overhead, seconds, best.judged.peak_bytes)
        if thorough:
            left = float("inf") if options.time_limit is None else start + options.time_limit - time.monotonic()
            bound, met = certify.look_longer(graph, weights, best, bound, left)
            # Budgets only: under an overhead goal, allowing more could yield a larger plan.
            if met is not None and aim.limit is not None and solver.joins and known is None:
                best = smaller(best, scorer.score(Schedule.from_runs(graph, met.runs, solver.name)), aim.limit)
    # Where a schedule was known there was no search, and an offer makes none.
    no_search = None if known is None else recalled
    offer = None if aim.limit is None else _offer(solver, problem, scorer, best, aim.limit, no_search)
    if memory is not None and known is None and not problem.interrupted.is_set():
        memory.keep([(x, bound) for x in (best, offer) if x is not None])
    _remember(solver, scorer, best)
    proven = certify.certificate(graph, weights, best, bound, aim, seconds)
    made = as_plan(scorer, best, baseline, options, proven, time.monotonic() - start)
    return replace(
        made,
        smallest_known_bytes=smallest if smallest is not None and smallest < best.needs else None,
        offer=None if offer is None else (offer.needs, offer.judged.overhead),
    )


def _offloaded(
    options: PlanOptions,
    solver: Solver,
    request: PlanRequest,
    known: Known | None,
    without: Callable[..., Plan],
) -> Plan:
    """The best plan that may copy values to the host. without : makes the best plan that copies none.

    Raises
    ------
    InfeasibleBudget, UsageError : as `plan_graph`. UsageError also where the graph has no link to the host.
    """
    start = time.monotonic()
    scorer, baseline, aim = request
    graph, host_bytes = scorer.graph, options.host_bytes
    most_s = None if options.time_limit is None else WITHOUT_COPIES_SHARE * options.time_limit
    stays = replace(options.staying, time_limit=most_s)
    if graph.link is None:
        if options.offload is True:
            raise UsageError(
                f"offload=True needs the speed of copies to the host, and graph {graph.name!r} has no link; give it one: "
                "dataclasses.replace(graph, link=rekindle.Link(50e9, 50e9))"
            )
        return replace(without(stays, known=known), asked=options)
    memory = remembered.place("plan", scorer, options, solver) if known is None else None
    problem = _problem_of(scorer, options, aim)
    found = known or (_recalled(memory.recall(), scorer, aim, problem) if memory is not None else None)
    if found is not None:
        best = _judged(found, scorer, aim)
    else:
        plain, refused = None, None
        try:
            plain = scorer.as_run(without(stays, interrupted=problem.interrupted, proves=False).schedule)
        except InfeasibleBudget as e:
            refused = e
        announce(options.progress, "looking for values that can be copied to the host")
        copied = Offloading(scorer, aim, host_bytes).best(plain, solver, problem)
        if copied is None:
            assert refused is not None
            raise infeasible_with_copies(refused, scorer)
        best = copied
    proven = certify.beside_copies(graph, best.judged.peak_bytes, best.judged.overhead, aim, host_bytes)
    if memory is not None and found is None and not problem.interrupted.is_set():
        memory.keep([(best, proven.bound)])
    return as_plan(scorer, best, baseline, options, proven, time.monotonic() - start)


def _offer(
    solver: Solver, problem: Problem, scorer: Scorer, best: Scored, limit: int, recalled: Sequence[Known] | None
) -> Scored | None:
    """A schedule that takes little more memory than the limit and costs far less than `best`: a remembered one, one of the
    curve that the search has met, or one that another search finds for a larger limit."""
    graph = scorer.graph
    if best.judged.overhead < STEEP_OVERHEAD:
        return None
    most = graph.with_resident(int(OFFER_REACH * graph.beside_resident(limit)))
    dear = OFFER_SHARE * best.judged.overhead
    if recalled is not None:
        return _nearest([scorer.as_run(k.schedule) for k in recalled], graph, most, dear)
    met = [Schedule.from_runs(graph, runs, solver.name) for runs in solver.known(problem.graph.hash)]
    on_curve = _nearest(scorer.all(met), graph, most, dear)
    if on_curve is not None:
        return on_curve
    brief = replace(problem, limit=most, effort="quick")  # a hint need not cost as much as the plan
    return _nearest(scorer.all(solver.solve(brief)), graph, most, dear)


def _nearest(met: Sequence[Scored], graph: Graph, most: int, dear: float) -> Scored | None:
    """Of the schedules of at most so many bytes, and at most so much overhead, the one of least memory times cost."""
    near = [x for x in met if x.needs <= most and x.judged.overhead <= dear]
    return min(near, key=lambda x: graph.beside_resident(x.needs) * (1 + x.judged.overhead), default=None)


def _judged(known: Known, scorer: Scorer, aim: Aim) -> Scored:
    """The candidate for a schedule that was found elsewhere."""
    found = pick([scorer.as_run(known.schedule)], aim)
    if found is None:
        raise RekindleError("a schedule that was found for the same goal does not keep it here; plan again")
    return found


def _recalled(recalled: Sequence[Known], scorer: Scorer, aim: Aim, problem: Problem) -> Known | None:
    """The first remembered schedule that keeps the goal."""
    for known in recalled:
        if pick([scorer.as_run(known.schedule)], aim) is not None:
            problem.progress(remembered.NEWS)
            return known
    return None


def _problem_of(scorer: Scorer, options: PlanOptions, aim: Aim) -> Problem:
    """The problem that the solver is asked. Where results are held, it is a step that keeps them."""
    graph, spare = scorer.graph, scorer.spare
    if spare is not None:
        graph, aim = keeping_results(graph), aim if aim.limit is None else aim._replace(limit=aim.limit - spare)
    return replace(make_problem(graph, options, aim), plain_bytes=scorer.plain_bytes)


def make_problem(graph: Graph, options: PlanOptions, aim: Aim) -> Problem:
    """The options as a solver takes them, with the aim in place of the goal."""
    weights = graph.weights(options.cost)
    if not weights.any():  # a graph without costs in this unit: count op runs, so that fewer is still better
        weights = graph.weights("unit")
    time_limit = options.time_limit
    deadline = None if time_limit is None else time.monotonic() + time_limit - certify.seconds_kept_back(time_limit)
    work = max(1.0, (time_limit or 0.0) / USUAL_S) if options.effort == "thorough" else 1.0
    progress = options.report or (lambda _: None)
    limited = time_limit is not None or options.effort == "thorough"
    return Problem(
        graph, weights, *aim, options.seed, deadline, progress, options.effort, work,
        allowance=None if limited else allowance.of_step(float(graph.weights("seconds")[graph.needed].sum())),
    )  # fmt: skip


def _without_limit(solver: Solver, problem: Problem, request: PlanRequest) -> tuple[Scored, int]:
    """(the smallest candidate within the goal's overhead or at any cost, the smallest budget that a candidate keeps)."""
    scorer, _, aim = request
    found = scorer.all(solver.solve(problem))
    best = pick(found, aim)
    if best is None:
        raise no_such_overhead(solver, aim, found)
    found += scorer.all(solver.retry(problem, best.schedule))
    return pick(found, aim) or best, min(s.needs for s in found)


def _within_limit(solver: Solver, problem: Problem, scorer: Scorer, goal: Goal, limit: int) -> tuple[Scored, int]:
    """(the cheapest candidate within the limit, the smallest budget that a candidate keeps).

    Raises
    ------
    InfeasibleBudget : at once where the limit lies below the bound at any cost; else where no search finds a plan.
    """
    floor = floor_of(scorer.graph, scorer.spare)
    if limit < floor.bytes:
        problem.progress(
            f"no schedule exists below {format_bytes(floor.bytes)}; looking for the smallest that is reachable"
        )
        raise _refusal(solver, scorer, goal, limit, _smallest(solver.quick or solver.solve, problem, scorer), floor)
    found = _finished_within(solver, problem, scorer, limit)
    aim = Aim(limit)
    best = pick(found, aim)
    if best is not None:
        return best, min(s.needs for s in found)
    # A solver that aims at the budget may stop above its least memory; and a peak that an error calls reachable must be
    # reached when it is asked for.
    least = _smallest(solver.solve, problem, scorer)
    least = [*least, *_known(solver, scorer)]
    best = pick(least, aim)
    if best is None:
        best = pick(scorer.all(solver.retry(problem, None)), aim)
    if best is None:
        raise _refusal(solver, scorer, goal, limit, [*found, *least], floor)
    return best, min(best.needs, *(s.needs for s in least))


def _finished_within(solver: Solver, problem: Problem, scorer: Scorer, limit: int) -> list[Scored]:
    """Candidates for the limit. A schedule may take more once it is finished, as gradients wait for the last read of their
    parameters: if that puts the cheapest one beyond the limit, the solver is asked again, for as much less."""
    found: list[Scored] = []
    for _ in range(ASKED_MOST):
        schedules = list(solver.solve(problem))
        new = scorer.all(schedules)
        found += new
        best = pick(found, Aim(limit))
        raised = [
            s.needs - limit for s, raw in zip(new, schedules, strict=True)
            if s.needs > limit and (best is None or s.judged.overhead < best.judged.overhead - EPS)
            and scorer.as_run(raw).needs <= limit
        ]  # fmt: skip
        if not raised or problem.limit is None:
            break
        problem = replace(problem, limit=problem.limit - min(raised))
    return found


def _smallest(solve: Solve, problem: Problem, scorer: Scorer) -> list[Scored]:
    """Candidates of a search for the least memory at any cost."""
    smallest = replace(problem, limit=None, max_overhead=None)
    least = scorer.all(solve(smallest))
    if scorer.spare is not None and _results_matter(scorer.graph, least):  # some may be made twice before forward ends
        least = least + scorer.all(solve(replace(smallest, graph=scorer.graph)))
    return least


def _refusal(
    solver: Solver, scorer: Scorer, goal: Goal, limit: int, found: list[Scored], floor: bounds.Bound
) -> InfeasibleBudget:
    """The error that names the smallest schedule of `found`, or a smaller one that is remembered."""
    found = [*found, *_known(solver, scorer)]
    _remember(solver, scorer, min(found, key=lambda s: (s.needs, s.judged.overhead)))
    return infeasible(scorer, solver, goal, limit, found, floor)


def _results_matter(graph: Graph, found: list[Scored]) -> bool:
    """Whether the results take so much of the least memory found that a second search is worth its time."""
    results = int(graph.arrays.bytes[result_values(graph)].sum())
    return results > RESULTS_MATTER_SHARE * graph.beside_resident(min(s.needs for s in found))


def _known(solver: Solver, scorer: Scorer) -> list[Scored]:
    """The schedules that are remembered for the graph, also one that does not look at results that are held."""
    keys = ((scorer.graph.hash, solver.name, spare) for spare in dict.fromkeys((scorer.spare, None)))
    return [scorer.as_run(_named[key]) for key in keys if key in _named]


def _remember(solver: Solver, scorer: Scorer, small: Scored) -> None:
    """Keep the schedule, unless a smaller one is kept, for later errors and for budgets that it keeps: a peak that was planned
    once is reached when it is asked for as a budget."""
    key = (scorer.graph.hash, solver.name, scorer.spare)
    if key not in _named or small.needs <= scorer.as_run(_named[key]).needs:
        _named[key] = small.schedule
    _named.move_to_end(key)
    if len(_named) > NAMED_MOST:
        _named.popitem(last=False)


def as_plan(
    scorer: Scorer, best: Scored, baseline: Scored, options: PlanOptions, proven: certify.Certificate, seconds: float
) -> Plan:
    """The plan of a candidate. seconds : how long solving took."""
    graph, j, bound = scorer.graph, best.judged, proven.bound
    plain, measured = scorer.plain_bytes, isinstance(scorer.plain_bytes, Measured)
    return Plan(
        graph=graph,
        schedule=best.schedule,
        peak_bytes=j.peak_bytes,
        activation_peak_bytes=graph.beside_resident(j.peak_bytes),
        baseline_peak_bytes=graph.with_resident(plain or 0) if measured else baseline.judged.peak_bytes,
        baseline_measured=measured,
        seconds=j.seconds,
        overhead=j.overhead,
        flops_overhead=j.flops_overhead,
        solver=options.solver,
        status="optimal" if proven.optimal else "feasible",
        bound_bytes=bound.bytes,
        bound_op="" if bound.op is None else graph.ops[bound.op].name,
        gap=(j.peak_bytes - bound.bytes) / j.peak_bytes if j.peak_bytes else 0.0,
        graph_hash=graph.hash,
        goal=options.goal,
        cost=options.cost,
        solve_seconds=seconds,
        asked=options,
        least_overhead=proven.least_overhead,
        host_bytes=j.host_bytes,
        moved_bytes=j.moved_bytes,
    )
