"""Graph + goal -> Plan: asks a solver for candidates, lets the judge score them, picks, certifies."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from . import bounds
from .budget import Goal, format_bytes
from .errors import InfeasibleBudget, UsageError
from .graph import Graph
from .held import held_peak, keeping_results, relaxed, result_values
from .plan import Plan
from .schedule import Schedule
from .simulate import Simulation, simulate
from .solvers import exact, registry
from .solvers.base import Problem, Progress, Solver

EPS = 1e-9
THOROUGH = ("auto", "exact")  # what a user trusts, and what proves; the others are asked for to be compared
CERTIFY, BRIEFLY = 1.0, 0.2  # seconds, about, for the certificate of a plan: of theirs, of the others'
PATIENCE = 15.0  # seconds that must be left to look longer: at SETS sets of values
LOOSE, FEW, SETS = 0.02, 80, 400_000  # if it misses more than that part, on graphs of so few ops
USUAL = 30.0  # seconds; a longer time limit makes searches work longer
SMALL = 128  # ops of graphs on which optimality may be searched for
CLOSER = 400  # ops of graphs at whose frontier's low end a closer look is worth twice the time of all the rest
RESULTS_MATTER = 1 / 64  # of the least memory: where the results take less, one search for it is enough
MOST_NAMED = 64
Finish = Callable[[Graph, Schedule], Schedule]
# A peak that an error called reachable is reached when it is asked for, even if a clock ends the search: (hash of the graph,
# solver) -> the schedule that the error spoke of.
_named: OrderedDict[tuple[str, str], Schedule] = OrderedDict()


@dataclass(frozen=True)
class Scored:
    """A candidate and the judge's figures for it. needs : bytes of the smallest budget that it keeps."""

    schedule: Schedule
    judged: Simulation
    needs: int


def plan_graph(
    graph: Graph,
    goal: Goal,
    *,
    solver: str = "auto",
    cost: str = "seconds",
    time_limit: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    finish: Finish | None = None,
    bookkeeping: int | None = None,
) -> Plan:
    """The best plan the solver finds for the goal. `finish` turns a schedule into the one that will be run; the judge
    sees that one.

    bookkeeping : where it is given, a budget in bytes is kept also by a loop that holds the results of forward until the
        step is over, with so many bytes to spare. None: the judge's peak alone has to fit.

    Raises
    ------
    UsageError : unknown solver or cost.
    InfeasibleBudget : nothing the solver finds fits the budget.
    """
    start = time.monotonic()
    chosen = registry.get(solver)
    spare = bookkeeping if goal.budget is not None else None
    score = partial(_score, graph, cost=cost, finish=finish, spare=spare)
    baseline = score(Schedule.baseline(graph))
    limit = goal.limit(graph.resident_bytes, baseline.judged.peak_bytes - graph.resident_bytes)
    # Where results are held, solvers are asked about a step that keeps them.
    asked, certain = (graph, graph) if spare is None else (keeping_results(graph), relaxed(graph))
    free = spare or 0
    aim = None if limit is None or limit - free < bounds.single_op(certain).bytes else limit - free
    problem = _problem(asked, cost, aim, goal.max_overhead, seed, time_limit, progress)
    smallest = replace(problem, limit=None, max_overhead=None)

    def scored(schedules: Iterable[Schedule]) -> list[Scored]:
        return [score(s) for s in schedules]

    found = scored(chosen.solve(problem))
    if goal.least_memory:
        found += scored(_by_other_costs(chosen, problem, "unit", "seconds"))
    best = _pick(found, limit, goal.max_overhead)
    if _overhead_is_left(chosen, problem, cost, best):
        found += scored(_by_other_costs(chosen, replace(smallest, whole=True), "seconds"))
        best = _pick(found, None, goal.max_overhead)
    if best is None and limit is not None:
        # A solver that aims at the budget may stop above its least memory; and a peak that an error calls reachable must be
        # reached when it is asked for.
        least = scored(chosen.solve(smallest)) if problem.limit is not None else found
        if spare is not None and _results_matter(graph, least):  # some may be made twice before forward ends
            least = least + scored(chosen.solve(replace(smallest, graph=graph)))
        key = (graph.hash, chosen.name)
        if key in _named:
            least = [*least, score(_named[key], finish=None)]
        best = _pick(least, limit, None)
        if best is None and problem.limit is not None:
            best = _pick(scored(_by_other_costs(chosen, problem, "unit", "seconds")), limit, None)
        if best is None:
            reached = min(least, key=lambda s: s.needs)
            _remember(key, reached.schedule)
            raise _infeasible(graph, chosen, goal, limit, reached.needs, bounds.look_ahead(certain), spare)
    if best is None:
        raise _no_such_overhead(chosen, goal, found)
    weights = graph.weights(cost)
    thorough = chosen.name in THOROUGH
    certifying = _certifying(start, time_limit, CERTIFY if thorough else BRIEFLY)
    bound = bounds.best(graph, weights, best.judged.overhead, certifying, best.judged.peak_bytes)
    if thorough and (time_limit is None or start + time_limit - time.monotonic() > PATIENCE):
        bound, met = _look_longer(graph, weights, best, bound)
        # Within an overhead it may find nothing where more is allowed: then more could turn out larger.
        if met is not None and chosen.name == "auto" and limit is not None:
            best = _smaller(best, score(met), limit)
    optimal = _optimal(graph, weights, best, bound, goal, limit)
    return _plan(graph, best, baseline, chosen, goal, cost, time.monotonic() - start, bound, optimal)


def _results_matter(graph: Graph, found: list[Scored]) -> bool:
    """Whether the results take so much of the least memory found that a second search is worth its time."""
    results = int(graph.arrays.bytes[result_values(graph)].sum())
    return results > RESULTS_MATTER * (min(s.needs for s in found) - graph.resident_bytes)


def _remember(key: tuple[str, str], schedule: Schedule) -> None:
    _named[key] = schedule
    _named.move_to_end(key)
    if len(_named) > MOST_NAMED:
        _named.popitem(last=False)


def _look_longer(
    graph: Graph, weights: np.ndarray, best: Scored, bound: bounds.Bound
) -> tuple[bounds.Bound, Schedule | None]:
    """Where the bound on a small graph is far off, one that takes longer; and the smallest schedule met on the way that
    costs no more."""
    peak = best.judged.peak_bytes
    if int(graph.needed.sum()) > FEW or bound.bytes >= (1 - LOOSE) * peak:
        return bound, None
    closer = exact.least_peak(graph, weights, best.judged.overhead, SETS, peak)
    met = None if closer.schedule is None else Schedule.from_runs(graph, closer.schedule.runs, "auto")
    return bound._replace(bytes=max(bound.bytes, closer.peak_bound)), met


def _overhead_is_left(chosen: Solver, problem: Problem, cost: str, best: Scored | None) -> bool:
    """Whether the overhead allows the smallest plan of the whole sweep, and it is not certified that the best one is the
    smallest. The sweep is the same for every overhead: where less allows it, more does."""
    if problem.max_overhead is None or best is None or not _other_weights(chosen, problem, "seconds"):
        return False
    if bounds.at_overhead(problem.graph, problem.weights, problem.max_overhead).bytes >= best.judged.peak_bytes:
        return False
    *_, smallest = chosen.solve(replace(problem, max_overhead=None, whole=True, coarse=True))
    return simulate(problem.graph, smallest, cost).overhead <= problem.max_overhead + EPS


def _by_other_costs(chosen: Solver, problem: Problem, *units: str) -> Iterator[Schedule]:
    """More plans for the same goal, searched by the cost in each of `units`."""
    for weights in _other_weights(chosen, problem, *units):
        yield from chosen.solve(replace(problem, weights=weights))


def _other_weights(chosen: Solver, problem: Problem, *units: str) -> list[np.ndarray]:
    """Costs in `units`, if they help: where many ops cost nothing (element-wise ones, in FLOPs), a search by cost has little
    to go by."""
    free = problem.weights[problem.graph.weights("unit") > 0] == 0
    if chosen.name != "auto" or problem.time_left <= 0 or not free.any():
        return []
    return [w for w in map(problem.graph.weights, units) if w.any() and not np.array_equal(w, problem.weights)]


def _certifying(start: float, time_limit: float | None, most: float) -> float:
    """Seconds for the certificate: what is left of the limit, and little in any case."""
    if time_limit is None:
        return most
    return min(most, max(_kept_back(time_limit), start + time_limit - time.monotonic()))


def _kept_back(time_limit: float) -> float:
    """Seconds of a time limit that the search leaves for the certificate."""
    return min(CERTIFY, 0.1 * time_limit)


def _optimal(
    graph: Graph, weights: np.ndarray, best: Scored, bound: bounds.Bound, goal: Goal, limit: int | None
) -> bool:
    """Whether it is proven that no schedule serves the goal better."""
    j = best.judged
    if goal.least_memory:
        return j.peak_bytes <= bounds.single_op(graph).bytes
    if goal.max_overhead is not None:
        if bound.bytes < j.peak_bytes:
            return False
        return j.peak_bytes <= bounds.best(graph, weights, goal.max_overhead, CERTIFY, j.peak_bytes).bytes
    if j.overhead <= EPS:
        return True
    assert limit is not None
    once = float(weights[graph.needed].sum())
    small = len(graph.ops) <= SMALL
    return j.overhead * once <= bounds.time_at(graph, weights, limit, CERTIFY if small else 0.0) + EPS * once


def frontier_graph(
    graph: Graph,
    *,
    solver: str = "auto",
    cost: str = "seconds",
    time_limit: float | None = None,
    seed: int = 0,
    points: int = 12,
    progress: Progress | None = None,
    finish: Finish | None = None,
) -> list[Plan]:
    """Plans from least cost to least memory, none dominated by another, in order of falling peak."""
    start = time.monotonic()
    chosen = registry.get(solver)
    baseline = _score(graph, Schedule.baseline(graph), cost, finish)
    found = [baseline] if chosen.name in ("auto", "none") else []
    top = baseline.judged.peak_bytes - graph.resident_bytes
    bottom = max(0, bounds.single_op(graph).bytes - graph.resident_bytes)
    share = None if time_limit is None else time_limit / points
    coarse = len(graph.ops) > CLOSER
    everything = replace(_problem(graph, cost, None, None, seed, time_limit, progress), whole=True, coarse=coarse)
    found += [_score(graph, s, cost, finish) for s in chosen.solve(everything)]
    fractions: Sequence[float] = np.linspace(1, 0, points + 1)[1:].tolist() if top > bottom else [0.0]
    seen: set[tuple[int, ...]] = set()
    for f in () if chosen.curve else fractions:
        limit = graph.resident_bytes + int(bottom + f * (top - bottom)) if f > 0 else None
        schedules = list(chosen.solve(_problem(graph, cost, limit, None, seed, share, progress)))
        key = tuple(hash(s) for s in schedules)
        if key in seen:  # a solver without a knob gives the same answer to every question
            break
        seen.add(key)
        found += [_score(graph, s, cost, finish) for s in schedules]
    kept = thin(pareto(found), 2 * points)
    certified = bounds.at_overheads(graph, graph.weights(cost), [s.judged.overhead for s in kept])
    seconds = time.monotonic() - start
    return [
        _plan(
            graph,
            s,
            baseline,
            chosen,
            Goal(budget=s.judged.peak_bytes),
            cost,
            seconds,
            bound,
            s.judged.overhead <= EPS,
        )  # fmt: skip
        for s, bound in zip(kept, certified, strict=True)
    ]


def thin(kept: list[Scored], most: int) -> list[Scored]:
    """At most so many of a frontier, evenly spread over the logarithm of the peak; both ends stay."""
    if len(kept) <= most:
        return kept
    peaks = np.log([max(1, s.judged.peak_bytes) for s in kept])
    at = np.linspace(peaks[0], peaks[-1], most)
    return [kept[i] for i in sorted({int(np.abs(peaks - x).argmin()) for x in at})]


def pareto(found: Iterable[Scored]) -> list[Scored]:
    """The candidates that no other matches in both peak and overhead, in order of falling peak."""
    kept: list[Scored] = []
    for s in sorted(found, key=lambda s: (s.judged.peak_bytes, s.judged.overhead)):
        if not kept or s.judged.overhead < kept[-1].judged.overhead - EPS:
            kept.append(s)
    return kept[::-1]


def _problem(
    graph: Graph, cost: str, limit: int | None, max_overhead: float | None, seed: int, time_limit: float | None,
    progress: Progress | None,
) -> Problem:  # fmt: skip
    if time_limit is not None and not time_limit > 0:
        raise UsageError(f"time_limit={time_limit!r} must be a number of seconds above 0")
    weights = graph.weights(cost)
    if not weights.any():  # a graph without costs in this unit: count op runs, so that fewer is still better
        weights = graph.weights("unit")
    deadline = None if time_limit is None else time.monotonic() + time_limit - _kept_back(time_limit)
    effort = max(1.0, (time_limit or 0.0) / USUAL)
    return Problem(graph, weights, limit, max_overhead, seed, deadline, progress or (lambda _: None), effort)


def _score(graph: Graph, schedule: Schedule, cost: str, finish: Finish | None, spare: int | None = None) -> Scored:
    """spare : bytes that a budget must leave free beside what a loop that holds the results takes; None: the judge's peak
    has to fit. The schedule may be one for `keeping_results(graph)`."""
    if spare is None:
        schedule = finish(graph, schedule) if finish else schedule
        judged = simulate(graph, schedule, cost)
        return Scored(schedule, judged, judged.peak_bytes)
    if finish:  # what waits must not wait on top of results that are held
        schedule = finish(relaxed(graph), Schedule.from_runs(relaxed(graph), schedule.runs, schedule.solver))
    if schedule.graph_hash != graph.hash:
        schedule = Schedule.from_runs(graph, schedule.runs, schedule.solver)
    return Scored(schedule, simulate(graph, schedule, cost), held_peak(graph, schedule) + spare)


def _smaller(one: Scored, two: Scored, limit: int) -> Scored:
    """The second if it holds less than the first, fits the limit and costs no more."""
    less = two.judged.peak_bytes < one.judged.peak_bytes and two.judged.overhead <= one.judged.overhead + EPS
    return two if less and two.needs <= limit else one


def _pick(found: list[Scored], limit: int | None, max_overhead: float | None) -> Scored | None:
    """Least cost within the limit; else least peak within max_overhead; else least peak."""
    if limit is not None:
        fit = [s for s in found if s.needs <= limit]
        return min(fit, key=lambda s: (s.judged.overhead, s.judged.peak_bytes), default=None)
    fit = [s for s in found if max_overhead is None or s.judged.overhead <= max_overhead + EPS]
    return min(fit, key=lambda s: (s.judged.peak_bytes, s.judged.overhead), default=None)


def _plan(
    graph: Graph, best: Scored, baseline: Scored, solver: Solver, goal: Goal, cost: str, seconds: float,
    bound: bounds.Bound, optimal: bool,
) -> Plan:  # fmt: skip
    j = best.judged
    return Plan(
        graph=graph,
        schedule=best.schedule,
        peak_bytes=j.peak_bytes,
        activation_peak_bytes=j.peak_bytes - graph.resident_bytes,
        baseline_peak_bytes=baseline.judged.peak_bytes,
        seconds=j.seconds,
        overhead=j.overhead,
        flops_overhead=j.flops_overhead,
        solver=solver.name,
        status="optimal" if optimal else "feasible",
        bound_bytes=bound.bytes,
        bound_op="" if bound.op is None else graph.ops[bound.op].name,
        gap=(j.peak_bytes - bound.bytes) / j.peak_bytes if j.peak_bytes else 0.0,
        graph_hash=graph.hash,
        goal=goal,
        cost=cost,
        solve_seconds=seconds,
    )


def _no_such_overhead(solver: Solver, goal: Goal, found: list[Scored]) -> UsageError:
    least = min(s.judged.overhead for s in found)
    return UsageError(
        f"solver {solver.name!r} has no plan within max_overhead={goal.max_overhead}; its least is {least:.1%}. "
        "Allow more, or use solver='auto'"
    )


def _infeasible(
    graph: Graph, solver: Solver, goal: Goal, limit: int, smallest: int, floor: bounds.Bound, spare: int | None
) -> InfeasibleBudget:
    """smallest : bytes that were reached. spare : as in `_score`."""
    least = floor.bytes + (spare or 0)
    op = "what must be live at the end" if floor.op is None else graph.ops[floor.op].name
    asked = f"budget {format_bytes(limit)} ({limit} bytes)"
    if goal.fraction is not None:
        asked = f"budget {goal.fraction:g} of the plain activation peak, {format_bytes(limit)} in all"
    parts = f"{format_bytes(graph.resident_bytes)} of it held during the whole step"
    if spare is not None:
        results = int(graph.arrays.bytes[result_values(graph)].sum())
        parts += f" and {format_bytes(results)} results, which a training loop holds until the step is over"
    why = (
        f"no schedule exists below {format_bytes(least)} ({least} bytes), {parts}, set by {op}"
        if limit < least
        else f"the certified bound is {format_bytes(least)} ({least} bytes), {parts}, set by {op}, "
        f"but solver {solver.name!r} found nothing that small"
    )
    hint = "" if solver.name == "auto" else ", use solver='auto'"
    split = ", or split that op" if limit < least and floor.op is not None else ""
    return InfeasibleBudget(
        f"{asked} cannot be met: {why}; the smallest peak known to be reachable is {format_bytes(smallest)} "
        f"({smallest} bytes). Raise the budget to that{hint} or make the batch smaller{split}",
        budget=limit, smallest_peak=smallest, bound_bytes=least, op=op,
    )  # fmt: skip
