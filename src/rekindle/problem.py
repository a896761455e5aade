"""The interface of solvers: a solver is a function from a `Problem` to candidate schedules.

A solver reports no figures. It proposes schedules, the judge scores them, and the planner picks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .allowance import Allowance
from .model.graph import Graph, Link
from .model.schedule import Schedule
from .saying.shares import EPS

if TYPE_CHECKING:
    from .structure.archive import Entry

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Problem:
    """The question to a solver: a graph, the cost of its ops, and a goal.

    graph : the step to schedule.
    weights : float64 [ops], positive where an op costs anything: what one run of each op costs.
    limit : the peak in bytes (resident included) to fit in at least cost, or None.
    max_overhead : the extra cost as a fraction of running each needed op once, within which to use least
        memory, or None. With neither, least memory is asked for at any cost.
    seed : makes a randomised solver repeatable.
    deadline : `time.monotonic()` at which to stop and give the best so far; None: no limit.
    allowance : processor time after which to do the same; None: no limit.
    progress : called with one line of text now and then.
    effort : "quick", "normal" or "thorough": how far a portfolio searches before it stops; see `ask.EFFORTS`.
    work : how much work a search may do, as a part of what it does by default.
    whole : the whole frontier is wanted: a solver that finds it in one search yields all of it.
    coarse : with `whole`: as a first sweep finds it, without closer looks.
    interrupted : set once the user has asked for the best so far.
    plain_bytes : the activation peak of which budgets are round shares, where the graph is a rewrite of a captured step; None:
        the graph's own.
    link : how fast values are copied to the host and back, where schedules may do that; None: they may not. Only solvers that
        are `Solver.copies` look at it, and take the weights for seconds.
    """

    graph: Graph
    weights: np.ndarray
    limit: int | None = None
    max_overhead: float | None = None
    seed: int = 0
    deadline: float | None = None
    progress: Progress = field(default=lambda _: None)
    effort: str = "thorough"
    work: float = 1.0
    whole: bool = False
    coarse: bool = False
    interrupted: threading.Event = field(default_factory=threading.Event)
    allowance: Allowance | None = None
    plain_bytes: int | None = None
    link: Link | None = None

    @property
    def base_cost(self) -> float:
        """The cost of running each needed op once."""
        return float(self.weights[self.graph.needed].sum())

    @property
    def time_left(self) -> float:
        """Seconds until the deadline, or of the allowance; none after an interruption."""
        if self.interrupted.is_set():
            return 0.0
        left = float("inf") if self.deadline is None else self.deadline - time.monotonic()
        return left if self.allowance is None else min(left, self.allowance.left)

    @property
    def room(self) -> int | None:
        """The limit in bytes beside those that are held during the whole step: searches count in these."""
        return None if self.limit is None else self.graph.beside_resident(self.limit)

    def within(self, room: float) -> Problem:
        """The problem of least cost within another limit, in bytes beside those that are held during the whole step."""
        return replace(self, limit=self.graph.with_resident(int(room)), max_overhead=None)

    def part(self, share: float) -> Problem:
        """The problem with a share of what is left of its allowance."""
        return self if self.allowance is None else replace(self, allowance=self.allowance.part(share))

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Ctrl-C inside ends the search and not the call: the best found so far is what it gives."""
        try:
            yield
        except (KeyboardInterrupt, SystemError) as e:
            if not _is_ctrl_c(e):
                raise
            self.interrupted.set()
            self.progress("interrupted: going on with the best found so far")


def _is_ctrl_c(e: BaseException | None) -> bool:
    """Whether the error is Ctrl-C, or what numba makes of it while it loads a compiled loop."""
    while e is not None and not isinstance(e, KeyboardInterrupt):
        e = e.__cause__ or e.__context__
    return e is not None


Solve = Callable[[Problem], Iterable[Schedule]]
Retry = Callable[[Problem, Schedule | None], Iterable[Schedule]]


def no_retry(problem: Problem, best: Schedule | None) -> Iterable[Schedule]:
    """The `Solver.retry` of solvers that have nothing to add."""
    return ()


def nothing_known(graph_hash: str) -> Sequence[np.ndarray]:
    """The `Solver.known` of solvers that remember nothing."""
    return ()


def no_members(graph: Graph, effort: str, optimal: bool) -> Sequence[str]:
    """The `Solver.members` of solvers that ask no other."""
    return ()


@dataclass(frozen=True)
class Solver:
    """A registered algorithm and what is known of it; `rekindle solvers` and the docs are made from this.

    graphs : "chain" (other graphs are taken as a series of blocks, see `structure.cuts.series`) or "any".
    objective : what it minimises, in one line.
    optimal : what its optimality claim is; "" for none. A claim is about its own stated objective.
    curve : asked for the whole frontier, it yields all of it at once, and is not asked for single budgets too.
    declines : Graph -> why it only gives the baseline there, or "".
    thorough : its plans get a long search for their certificate; plans of solvers that serve comparisons get a short one.
    joins : it joins the schedules of other searches, so a smaller one that the search for a certificate meets counts too.
    retry : (problem, best schedule so far, or None where none meets the goal) -> further candidates. The planner asks
        once, after `solve`.
    quick : a fast search for small schedules and a few cheaper ones, for errors that name what is reachable; None: `solve`.
    members : (graph, effort, whether the plan is proven optimal) -> names of the solvers that it asks there, for citations.
    copies : of a problem with a link it makes schedules that copy values to the host.
    known : hash of a graph -> sequences of runs over its whole curve, where it was solved in this process and is remembered.
    """

    name: str
    solve: Solve
    graphs: str
    objective: str
    optimal: str
    complexity: str
    citation: str
    curve: bool = False
    declines: Callable[[Graph], str] = lambda _: ""
    thorough: bool = False
    joins: bool = False
    copies: bool = False
    retry: Retry = no_retry
    quick: Solve | None = None
    known: Callable[[str], Sequence[np.ndarray]] = nothing_known
    members: Callable[[Graph, str, bool], Sequence[str]] = no_members

    @property
    def doc(self) -> str:
        """The solver's own documentation."""
        return self.solve.__doc__ or ""


REGISTERED: dict[str, Solver] = {}


def register(
    name: str, *, graphs: str, objective: str, optimal: str = "", complexity: str, citation: str, **more: Any
) -> Callable[[Solve], Solve]:
    """Decorator that registers a function `Problem -> iterable of Schedule` as the solver `name`.

    The keyword arguments are the fields of `Solver`. `registry.get` finds the solver by its name.
    """

    def enter(solve: Solve) -> Solve:
        REGISTERED[name] = Solver(name, solve, graphs, objective, optimal, complexity, citation, **more)
        return solve

    return enter


def choose(problem: Problem, entries: list[Entry]) -> list[Entry]:
    """The entry of a frontier that the problem asks for, and the smallest one, which errors name where nothing fits.

    entries : in order of falling peak. All of them come back where the problem asks for the whole frontier.
    """
    if problem.whole or not entries:
        return entries
    fit: list[Entry] = []
    if problem.room is not None:
        fit = [e for e in entries if e.peak <= problem.room][:1]
    elif problem.max_overhead is not None:
        most = problem.max_overhead * problem.base_cost
        fit = [e for e in entries if e.extra <= most + EPS * problem.base_cost][-1:]
    return [*fit, entries[-1]]
