"""A plan that recomputes less and copies values to the host instead, where the link has time for them.

Schedules that cost less, and hold more than the goal allows, get copies until they keep the goal (see `structure.copying`).
They come from the curve that the search for a plan without copies has met. (One more search at the peak of the best of them
took as long as all else, and bettered none of 12 plans.) A solver that chooses copies itself is asked last: its schedules are
finished, and the values that it copies get their copies anew, before any others. The result is never worse than the plan
without copies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from .. import bounds
from ..ask import Aim
from ..model.schedule import OFFLOAD, Schedule
from ..problem import Problem, Solver
from ..saying.shares import EPS
from ..structure.copying import Copying
from .candidates import Scored, Scorer, pareto
from .own_terms import once

CANDIDATES_MOST = 300  # schedules that get copies, the largest left out first. A guess
LEAST_GAIN_SHARE = 0.005  # of the peak: a smaller one within an overhead counts from here
HALVINGS = 6  # of the bytes between a peak that is reached and one that is not


@dataclass(frozen=True)
class Offloading:
    """A search for the best schedule with copies.

    host_bytes : that the host may hold. leaving : as `Copying` takes it.
    """

    scorer: Scorer
    aim: Aim
    host_bytes: float
    leaving: np.ndarray | None = None

    def best(self, plain: Scored | None, solver: Solver, problem: Problem) -> Scored | None:
        """The best candidate for the goal, with copies or without; None: nothing keeps the goal.

        plain : the best one without copies; None: none keeps the goal. problem : as the solver was asked.
        """
        found, graph = self._added(plain, solver, problem), self.scorer.graph
        fastest = self.aim.limit is not None and found is not None and found.judged.overhead <= EPS
        if fastest or not solver.copies:
            return found
        for s in solver.solve(replace(problem, link=graph.link)):
            values = s.array[s.array[:, 0] == OFFLOAD, 1]
            if len(values):
                leaving = np.isin(np.arange(len(graph.values)), values)
                finished = self.scorer.score(Schedule.from_runs(problem.graph, s.runs, solver.name))
                found = replace(self, leaving=leaving).among([finished], found)
        return found

    def _added(self, plain: Scored | None, solver: Solver, problem: Problem) -> Scored | None:
        """The best candidate whose copies were put into schedules that know of none."""
        graph = self.scorer.graph
        runs = solver.known(problem.graph.hash)
        if not len(runs):
            whole = replace(problem, limit=None, max_overhead=None, whole=True, coarse=True)
            runs = [np.array(s.runs) for s in solver.solve(whole)]
        met = [Schedule.baseline(graph, solver.name), *(Schedule.from_runs(graph, r, solver.name) for r in runs)]
        unfinished = pareto(replace(self.scorer, finish=None).all(met))
        curve = self.scorer.all(s.schedule for s in unfinished if self._may_serve(s, plain))[-CANDIDATES_MOST:]
        found = self.among(takewhile(lambda _: problem.time_left > 0, curve), plain)
        if found is None or found is plain:
            return found
        if self.aim.limit is None:  # the same peak may be reached in less time
            return replace(self, aim=Aim(limit=found.needs)).among(curve, found)
        return found

    def among(self, met: Iterable[Scored], best: Scored | None) -> Scored | None:
        """`best`, or the schedule of `met` that serves the goal better with copies; None: none keeps the goal."""
        for s in met:
            better = self._cheaper if self.aim.limit is not None else self._smaller
            best = better(best, s) or best
        return best

    def _may_serve(self, s: Scored, plain: Scored | None) -> bool:
        """Whether the schedule with copies may be better than `plain`: it costs less, and a step no slower than `plain` can
        have so many bytes away that it keeps the limit. (Without a limit, every schedule may.)"""
        if self.aim.limit is None or plain is None:
            return True
        most = bounds.most_away(self.scorer.graph, plain.judged.seconds, self.host_bytes)
        return s.judged.overhead < plain.judged.overhead and s.needs <= self.aim.limit + most

    @property
    def _once_s(self) -> float:
        return once(self.scorer.graph, "seconds")

    def _cheaper(self, best: Scored | None, s: Scored) -> Scored | None:
        """The schedule with copies that keeps the limit and takes less time than `best`."""
        limit = self.aim.limit
        assert limit is not None
        most_s = np.inf if best is None else best.judged.seconds - EPS * self._once_s
        if s.judged.seconds >= most_s or s.needs <= limit:
            return None
        return self._copied(self._copying(s), limit, most_s)

    def _smaller(self, best: Scored | None, s: Scored) -> Scored | None:
        """The schedule with copies that keeps the overhead and takes less memory than `best`."""
        allowed = self.aim.max_overhead
        most_s = np.inf if allowed is None else (1 + allowed + EPS) * self._once_s
        top = s.needs if best is None else best.needs
        copying, found = self._copying(s), None
        least = copying.least_room
        room = int((1 - LEAST_GAIN_SHARE) * top)
        if s.judged.seconds > most_s or room < least:
            return None
        for _ in range(1 + HALVINGS):
            smaller = self._copied(copying, room, most_s)
            if smaller is None and found is None:
                break
            found, top, least = (smaller, smaller.needs, least) if smaller is not None else (found, top, room + 1)
            room = (least + top) // 2
        return found

    def _copying(self, s: Scored) -> Copying:
        return Copying(self.scorer.graph, s.schedule, self.scorer.memory(s.schedule), self.leaving)

    def _copied(self, copying: Copying, limit: int, most_s: float) -> Scored | None:
        """The candidate within a limit, in bytes as `Scored.needs` counts them."""
        found = copying.within(limit, self.host_bytes, most_s)
        return None if found is None else self.scorer.as_run(found)
