"""Ways to run one part of a model: schedules that trade the bytes held from forward to backward for extra cost.

The peak of a part by itself says little about a step of many parts: while one part runs, the others hold what their forward
saved. So three curves of the part are searched: one by its peak alone, and two in which the op between forward and backward
needs memory besides, as if other parts ran there. In those, few bytes held are worth more than a low peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .. import allowance, bounds
from ..ask import LeastMemory, MaxOverhead, PlanOptions
from ..compiling import Compiled
from ..model.graph import Graph, Link, Value
from ..model.judge import simulate
from ..model.plan import Plan
from ..model.schedule import FREE, RUN, Schedule
from ..planning.candidates import Finish, Scorer
from ..planning.certify import Certificate
from ..planning.frontiers import frontier_graph
from ..planning.planner import as_plan
from ..saying.shares import EPS
from .plan import Offloaded, SaveRule

# Memory that others need between forward and backward, as shares of the part's plain activation peak: one curve is searched for
# each. Guesses.
BETWEEN_SHARES = (0.0, 0.5, 1.0)
# Ways of one part in a step of many. It may have more, where the ways of all parts are fewer than that in all: one part that is
# most of the model needs a fine choice. Guesses.
WAYS_MOST, WAYS_MOST_IN_ALL = 20, 240


@dataclass(frozen=True)
class Figures:
    """The bytes and the cost of one way to run a part, beside what is held around the part.

    held_bytes : saved on the device from the end of its forward to the beginning of its backward; below 0 where inputs that
        other parts count are copied to the host.
    away_bytes : copied to the host, and on the device until the next part's forward ends and once that part's backward begins.
    forward_bytes, backward_bytes : the most that the part holds while its forward or its backward runs. Results and bytes held
        count; gradients that come from outside do not.
    extra : cost beside the plain cost. plain : cost of the part where nothing is recomputed.
    """

    held_bytes: int
    forward_bytes: int
    backward_bytes: int
    extra: float
    plain: float = 0.0
    away_bytes: int = 0

    @property
    def bytes(self) -> tuple[int, int, int, int]:
        """(held, forward, backward, near) bytes: near are those that are held while the next part runs."""
        return self.held_bytes, self.forward_bytes, self.backward_bytes, self.held_bytes + self.away_bytes

    def matches(self, other: Figures) -> bool:
        """Whether no figure of this way is worse than the other way's."""
        return self.extra <= other.extra and all(a <= b for a, b in zip(self.bytes, other.bytes, strict=True))


@dataclass(frozen=True)
class Way:
    """One way to run a part: its schedule and what it takes.

    schedule : None for a part without a graph, which is left open, runs again in backward, or is compiled. rule : what a part
        that runs again saves besides its inputs. compiled : what a compiled part saves. is_exact : it has the bits of the part
        compiled as it is.
    """

    schedule: Schedule | None
    figures: Figures
    again: bool = False
    rule: SaveRule | None = None
    compiled: Compiled | None = None
    is_exact: bool = True
    offloaded: Offloaded | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the part runs as it is."""
        return self.schedule is None and not self.again and self.compiled is None


def ways(graph: Graph, options: PlanOptions, finish: Finish | None = None, parts: int = WAYS_MOST_IN_ALL) -> list[Way]:
    """Ways to run a part, from least cost to fewest bytes held, none worse than another in everything.

    The first one recomputes nothing. The goal of the options is not looked at. finish : as in `plan_graph`.
    parts : how many parts the step has; the fewer, the more ways are given for each.
    """
    plain = Schedule.baseline(graph) if finish is None else finish(graph, Schedule.baseline(graph))
    own_peak = graph.beside_resident(simulate(graph, plain).peak_bytes)
    allowance.of_step(float(graph.weights("seconds").sum()))
    most = len(BETWEEN_SHARES)
    limit = None if options.time_limit is None else options.time_limit / most
    anything = replace(options.staying, goal=LeastMemory(), time_limit=limit)
    schedules = [plain]
    for i, share in enumerate(BETWEEN_SHARES):
        other = _needing(graph, int(share * own_peak))
        with allowance.part(1 / (most - i)):
            found = frontier_graph(other, anything, finish=finish)
        for p in found:
            own = Schedule.from_runs(graph, p.schedule.runs, p.schedule.solver)
            schedules.append(own if finish is None else finish(graph, own))
    every = [Way(s, figures(graph, s, options.cost)) for s in dict.fromkeys(schedules)]
    return thinned(best(every), max(WAYS_MOST, WAYS_MOST_IN_ALL // parts))


def figures(graph: Graph, schedule: Schedule, cost: str) -> Figures:
    """The figures of a schedule of a part, without the bytes that are held around it during the whole step.

    Gradients that come back from outside are not the part's own: they live before its backward begins.
    """
    judged = simulate(graph, schedule, cost)
    own = graph.beside_resident(judged.memory)
    rows = schedule.array
    runs = rows[:, 0] == RUN
    assert graph.boundary is not None
    at = int(np.flatnonzero(runs & (rows[:, 1] == graph.boundary))[0])
    ended = at
    while ended + 1 < len(rows) and rows[ended + 1, 0] == FREE:
        ended += 1
    incoming = sum(graph.values[v].bytes for v in graph.ops[graph.boundary].outputs)
    weights = graph.weights(cost)
    once = float(weights[graph.needed].sum())
    extra = float(judged.runs @ weights) - once
    return Figures(
        held_bytes=max(0, int(own[ended]) - incoming),
        forward_bytes=int(own[:at][runs[:at]].max(initial=0)),
        backward_bytes=max(0, int(own[at + 1 :][runs[at + 1 :]].max(initial=0)) - incoming),
        extra=extra if extra > EPS * once else 0.0,  # sums of floats differ by their order
        plain=once,
    )


def best(found: Iterable[Way]) -> list[Way]:
    """The ways that no other matches in everything, in order of rising cost."""
    kept: list[Way] = []
    for w in sorted(found, key=lambda w: (w.figures.extra, w.figures.bytes)):
        if not any(k.figures.matches(w.figures) for k in kept):
            kept.append(w)
    return kept


@dataclass(frozen=True)
class Saves:
    """The storages that a way's forward saves, and the work behind which their copies can hide.

    sizes : bytes of each storage that may be copied to the host, in the order in which they are saved.
    stay : as of `Offloaded`. next_forward, next_backward : seconds of the part that comes next in forward.
    """

    sizes: tuple[int, ...]
    stay: tuple[int, ...]
    next_forward: float
    next_backward: float


def with_copies(found: Sequence[Way], saves: Sequence[Saves | None], link: Link) -> list[Way]:
    """The ways, and besides those in which what the forward saves is copied to the host: all of it, or as much as the forward
    of the next part hides.

    saves : of each way; None: nothing of it can be copied. A copy that takes longer than the next part's forward, or on the way
    back than its backward, is waited for.
    """
    made = [*found]
    for way, what in zip(found, saves, strict=True):
        if what is None:
            continue
        hidden = int(max(0.0, what.next_forward - link.copy_s * len(what.sizes)) * link.out_bytes_per_s)
        for room in dict.fromkeys((sum(what.sizes), hidden)):
            copied = _first_that_fit(what.sizes, room)
            if not copied:
                continue
            size, asked = sum(copied), link.copy_s * len(copied)
            waits = max(0.0, asked + size / link.out_bytes_per_s - what.next_forward)
            waits += max(0.0, asked + size / link.in_bytes_per_s - what.next_backward)
            f = way.figures
            f = replace(f, held_bytes=f.held_bytes - size, away_bytes=size, extra=f.extra + 2 * asked + waits)
            made.append(replace(way, figures=f, offloaded=Offloaded(size, what.stay)))
    return [found[0], *(w for w in best(made) if w is not found[0])]


def _first_that_fit(sizes: Iterable[int], room: int) -> list[int]:
    """The sizes that fit, each taken where it still does, as a step takes them."""
    taken: list[int] = []
    for size in sizes:
        if sum(taken) + size <= room:
            taken.append(size)
    return taken


def thinned(kept: list[Way], most: int) -> list[Way]:
    """At most about `most` ways: the first, those that are least in one size, and others evenly spread over two curves.

    Those are the cheapest ways for the bytes held, which matter where many parts hold bytes at once, and the cheapest ways for
    the part's own peak, which matters where few do.
    """
    if len(kept) <= most:
        return kept
    sizes = np.array([w.figures.bytes for w in kept])
    chosen = {0, *sizes.argmin(axis=0).tolist()}
    curves = sizes[:, 0], sizes.max(axis=1)
    each = (most - len(chosen)) // len(curves)
    for size in curves:
        lower = size < np.append(np.inf, np.minimum.accumulate(size)[:-1])  # ways stand in order of rising cost
        numbers = np.flatnonzero(lower)
        for x in np.linspace(size.max(), size.min(), each):
            chosen.add(int(numbers[np.abs(size[numbers] - x).argmin()]))
    return [kept[i] for i in sorted(chosen)]


def as_part_plan(graph: Graph, way: Way, options: PlanOptions, finish: Finish | None = None) -> Plan:
    """The plan of one part for one way. Its goal is the overhead that it has: the budget of the step is no one part's."""
    assert way.schedule is not None
    scorer = Scorer(graph, options.cost, finish)
    scored, baseline = scorer.as_run(way.schedule), scorer.score(Schedule.baseline(graph))
    goal = MaxOverhead(max(0.0, scored.judged.overhead) + EPS)
    proven = Certificate(bounds.single_op(graph), False)
    return as_plan(scorer, scored, baseline, replace(options.staying, goal=goal, or_least=False), proven, 0.0)


def _needing(graph: Graph, between: int) -> Graph:
    """The graph in which the op between forward and backward needs so many bytes besides. An unused value gives it a hash of
    its own: what is remembered of one is not the other's."""
    if not between:
        return graph
    ops = tuple(
        replace(o, workspace=o.workspace + between) if i == graph.boundary else o for i, o in enumerate(graph.ops)
    )
    return replace(graph, ops=ops, values=(*graph.values, Value(between)))
