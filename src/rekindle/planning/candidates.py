"""Candidate schedules with the judge's figures, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..ask import Aim, PlanOptions
from ..model.graph import Graph
from ..model.held import held_memory, relaxed
from ..model.judge import Simulation, simulate
from ..model.schedule import RUN, Schedule
from ..saying.shares import EPS

Finish = Callable[[Graph, Schedule], Schedule]


class Measured(int):
    """Bytes that a plain step was measured to take, where they differ from what its graph says."""


@dataclass(frozen=True)
class Scored:
    """A schedule and the judge's figures for it.

    needs : bytes of the smallest budget that the schedule keeps.
    """

    schedule: Schedule
    judged: Simulation
    needs: int


@dataclass(frozen=True)
class Known:
    """A finished schedule that an earlier search, or another process, found for the same request.

    bound_bytes : the bound that was proven of it; it is to be proven again.
    """

    schedule: Schedule
    bound_bytes: int


@dataclass(frozen=True)
class Scorer:
    """Turns a solver's schedules into candidates.

    finish : turns a schedule into the one that will be run; the judge sees the finished one. None: it is run as it is.
    spare : bytes that a budget must leave free beside a loop that holds the results of forward until the step is over.
        None: only the judge's peak has to fit.
    plain_bytes : the activation peak of which a budget is a fraction, where `graph` is a rewrite of a captured step or the
        plain step is `Measured`; None: the graph's own, each op run once.
    """

    graph: Graph
    cost: str
    finish: Finish | None = None
    spare: int | None = None
    plain_bytes: int | None = None

    def plain_of(self, baseline: Simulation) -> int:
        """The activation peak of which a budget is a fraction. baseline : of the graph, each op run once."""
        return self.graph.beside_resident(baseline.peak_bytes) if self.plain_bytes is None else self.plain_bytes

    def score(self, schedule: Schedule) -> Scored:
        """The candidate for a schedule of `graph`, or of `keeping_results(graph)`."""
        if self.finish is None:
            return self.as_run(schedule)
        if self.spare is None:
            return self.as_run(self.finish(self.graph, schedule))
        # Gradients that wait in a stage must not wait on top of results that are held.
        loose = relaxed(self.graph)
        return self.as_run(self.finish(loose, Schedule.from_runs(loose, schedule.runs, schedule.solver)))

    def as_run(self, schedule: Schedule) -> Scored:
        """The candidate for a schedule that is finished already."""
        if schedule.graph_hash != self.graph.hash:
            schedule = Schedule.from_runs(self.graph, schedule.runs, schedule.solver)
        judged = simulate(self.graph, schedule, self.cost)
        needs = judged.peak_bytes if self.spare is None else int(self.memory(schedule).max(initial=judged.peak_bytes))
        return Scored(schedule, judged, needs)

    def memory(self, schedule: Schedule) -> np.ndarray:
        """int64 [runs]: bytes during each run of a finished schedule, of which `Scored.needs` is the most."""
        if self.spare is None:
            return simulate(self.graph, schedule).memory[schedule.array[:, 0] == RUN]
        return held_memory(self.graph, schedule) + self.spare

    def all(self, schedules: Iterable[Schedule]) -> list[Scored]:
        """The candidates for several schedules."""
        return [self.score(s) for s in schedules]


class PlanRequest(NamedTuple):
    """The goal of a request on one graph, with all that tells how near a schedule comes to it.

    baseline : the candidate that runs each op once.
    """

    scorer: Scorer
    baseline: Scored
    aim: Aim

    @classmethod
    def of(
        cls, graph: Graph, options: PlanOptions, finish: Finish | None, bookkeeping: int | None, plain_bytes: int | None
    ) -> PlanRequest:
        """The request for a plan of the graph by these options. Takes the arguments of `planner.plan_graph`."""
        spare = bookkeeping if options.goal.budget is not None else None
        scorer = Scorer(graph, options.cost, finish, spare, plain_bytes)
        baseline = scorer.score(Schedule.baseline(graph))
        return cls(scorer, baseline, options.goal.aim(graph, scorer.plain_of(baseline.judged)))


def pick(found: list[Scored], aim: Aim) -> Scored | None:
    """The candidate of least cost within the limit; without a limit, of least peak within `max_overhead` or at any cost."""
    limit, max_overhead = aim
    if limit is not None:
        fit = [s for s in found if s.needs <= limit]
        return min(fit, key=lambda s: (s.judged.overhead, s.judged.peak_bytes), default=None)
    fit = [s for s in found if max_overhead is None or s.judged.overhead <= max_overhead + EPS]
    return min(fit, key=lambda s: (s.judged.peak_bytes, s.judged.overhead), default=None)


def smaller(one: Scored, two: Scored, limit: int) -> Scored:
    """The second candidate if it has the lower peak, fits the limit and costs no more; else the first."""
    lower = two.judged.peak_bytes < one.judged.peak_bytes and two.judged.overhead <= one.judged.overhead + EPS
    return two if lower and two.needs <= limit else one


def pareto(found: Iterable[Scored]) -> list[Scored]:
    """The candidates that no other matches in both peak and overhead, in order of falling peak."""
    kept: list[Scored] = []
    for s in sorted(found, key=lambda s: (s.judged.peak_bytes, s.judged.overhead)):
        if not kept or s.judged.overhead < kept[-1].judged.overhead - EPS:
            kept.append(s)
    return kept[::-1]


def thin(kept: list[Scored], most: int) -> list[Scored]:
    """At most `most` candidates of a frontier, evenly spread over the logarithm of the peak; both ends stay."""
    if len(kept) <= most:
        return kept
    peaks = np.log([max(1, s.judged.peak_bytes) for s in kept])
    at = np.linspace(peaks[0], peaks[-1], most)[1:-1]
    return [kept[i] for i in sorted({0, *(int(np.abs(peaks - x).argmin()) for x in at), len(kept) - 1})]
