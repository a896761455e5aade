"""A plan that recomputes less and copies values to the host instead, where the link has time for them.

Schedules that cost less, and hold more than the goal allows, get copies until they keep the goal (see `structure.copying`).
They come from the curve that the search for a plan without copies has met, and from one more search at the peak of the best of
them. A solver that chooses copies itself is asked last: its schedules are finished, and the values that it copies get their
copies anew, before any others. The result is never worse than the plan without copies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ..ask import Aim
from ..model.schedule import OFFLOAD, Schedule
from ..problem import Problem, Solver
from ..saying.shares import EPS
from ..structure.copying import Copying
from .candidates import Scored, Scorer, pareto

CANDIDATES_MOST = 300  # schedules that get copies, the largest left out first. A guess
LEAST_GAIN_SHARE = 0.005  # of the peak: a smaller one within an overhead counts from here
HALVINGS = 6  # of the bytes between a peak that is reached and one that is not


@dataclass(frozen=True)
class Offloading:
    """A search for the best schedule with copies.

    problem : as the solver takes it. host_bytes : that the host may hold. leaving : as `Copying` takes it.
    """

    scorer: Scorer
    solver: Solver
    problem: Problem
    aim: Aim
    host_bytes: float
    leaving: np.ndarray | None = None

    def best(self, plain: Scored | None) -> Scored | None:
        """The best candidate for the goal, with copies or without; None: nothing keeps the goal.

        plain : the best one without copies; None: none keeps the goal.
        """
        found, graph = self._added(plain), self.scorer.graph
        fastest = self.aim.limit is not None and found is not None and found.judged.overhead <= EPS
        if fastest or not self.solver.copies:
            return found
        for s in self.solver.solve(replace(self.problem, link=graph.link)):
            values = s.array[s.array[:, 0] == OFFLOAD, 1]
            if len(values):
                leaving = np.isin(np.arange(len(graph.values)), values)
                finished = self.scorer.score(Schedule.from_runs(self.problem.graph, s.runs, self.solver.name))
                found = replace(self, leaving=leaving)._better(found, [finished])
        return found

    def _added(self, plain: Scored | None) -> Scored | None:
        """The best candidate whose copies were put into schedules that know of none."""
        curve = self._curve()
        found = self._better(plain, curve)
        if found is None or found is plain:
            return found
        if self.aim.limit is None:  # the same peak may be reached in less time
            return replace(self, aim=Aim(limit=found.needs))._better(found, curve)
        own = self.scorer.as_run(Schedule.from_runs(self.scorer.graph, found.schedule.runs, self.solver.name))
        limit = own.needs - (self.scorer.spare or 0)
        return self._better(found, self.scorer.all(self.solver.solve(replace(self.problem, limit=limit))))

    def _curve(self) -> list[Scored]:
        """Finished schedules of the whole curve, in order of falling peak."""
        graph, name = self.scorer.graph, self.solver.name
        runs = self.solver.known(self.problem.graph.hash)
        if not len(runs):
            whole = replace(self.problem, limit=None, max_overhead=None, whole=True, coarse=True)
            runs = [np.array(s.runs) for s in self.solver.solve(whole)]
        met = [Schedule.baseline(graph, name), *(Schedule.from_runs(graph, r, name) for r in runs)]
        return pareto(self.scorer.all(met))[-CANDIDATES_MOST:]

    def _better(self, best: Scored | None, met: Iterable[Scored]) -> Scored | None:
        for s in met:
            better = self._cheaper if self.aim.limit is not None else self._smaller
            best = better(best, s) or best
        return best

    def _cheaper(self, best: Scored | None, s: Scored) -> Scored | None:
        """The schedule with copies that keeps the limit and takes less time than `best`."""
        limit = self.aim.limit
        assert limit is not None
        most_s = np.inf if best is None else best.judged.seconds - EPS * self.problem.base_cost
        if s.judged.seconds >= most_s or s.needs <= limit:
            return None
        return self._copied(self._copying(s), limit, most_s)

    def _smaller(self, best: Scored | None, s: Scored) -> Scored | None:
        """The schedule with copies that keeps the overhead and takes less memory than `best`."""
        allowed = self.aim.max_overhead
        most_s = np.inf if allowed is None else (1 + allowed + EPS) * self.problem.base_cost
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
