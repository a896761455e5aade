"""Beam search over what is needed, from the end of the step to its start.

Beam search is folklore; the walk over needed sets is the pebble game of Sethi, Complete Register Allocation Problems,
SIAM J. Comput. 1975, read backwards.

Problem: least extra cost within a peak, of the whole step, in which every op may run any number of times. Read backwards
a schedule is a walk: what is needed at the end is the first set; a run of op q leads from the set R to R without q's
outputs, with q's inputs, and holds R and q's inputs, outputs and workspace. The walk ends where nothing is needed. So
the order of runs and what runs again are decided together, and no state is larger than a set.

Method: states with as many ops retired (first runs passed) are compared, by extra cost so far and bytes held at a price
per byte; the best ones are kept. A state whose next op does not fit takes runs again: those that give up most bytes for
their cost, alone or with those that make their inputs. Several prices, margins and widths are tried, and with a limit on
cost or none, several caps, between which the search bisects.

Optimality: none claimed. The model is exact for ops with several outputs, with workspace, and for ops that run once.
Writing in place is seen only where an input's maker can only have run on the same side of the boundary, so the judge
never finds more than the search has counted. On small steps it is nearly always optimal; on long uniform chains the
chain solvers are clearly better, since a beam sees no further than what a drop gives up at once.
On graphs of thousands of ops with a tight cap all states of a beam can end, and then there is no plan, after half a
minute or so.

Complexity: O(n) levels of a beam of w states, each of which looks at O(n) values where it must drop some: O(w n^2) with
a small constant, and w n bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from .. import bounds
from ..kernels import beam as kernel
from ..kernels.arrays import compressed_rows
from ..kernels.waiting import depends
from ..model.graph import Graph
from ..model.judge import plain_activation_bytes
from ..model.schedule import Schedule
from ..problem import Problem, register
from ..saying.shares import EPS


class BeamWay(NamedTuple):
    """One way to search.

    width : states kept at each level.
    price : cost of a held byte, as a multiple of what a drop has cost on average per byte.
    soft : share of the cap below which nothing is dropped.
    window : how many unretired ops back from the last one the next op to retire may stand.
    """

    width: int
    price: float
    soft: float
    window: int


# How much is searched: guesses that served on small steps and the benchmark's models.
SMALL_SHARE = 0.001  # of the plain peak: smaller values are never dropped for their own sake
DROPS_PER_STATE = 4  # how many are tried from a state that does not fit
CLOSE_SHARE = 0.004  # of the plain peak: caps that differ by less are not told apart
MOST_WORK = 2.5e8  # states times levels times the size of a state, over all ways that are tried
PROBE = (  # narrow ways that are tried first
    BeamWay(8, 1.0, 0.9, 1),
    BeamWay(8, 0.3, 0.8, 6),
    BeamWay(8, 1.0, 1.0, 4),
    BeamWay(8, 3.0, 0.7, 1),
    BeamWay(8, 10.0, 0.6, 1),
    BeamWay(8, 30.0, 0.5, 1),
)
WAYS = tuple(  # wider ways that are tried next, as many as `MOST_WORK` allows
    BeamWay(24, price, soft, window)
    for soft in (0.8, 0.9, 0.7, 1.0)
    for price, window in ((1.0, 1), (0.3, 6), (0.3, 1), (1.0, 6), (3.0, 1))
)
LEAST_WAYS = 2  # how many wider ways are tried however large the graph is
WIDE_STATES = 64  # width with which the best two ways are tried again
WAYS_FOR_WIDE = 6  # how many ways must be affordable before that is done
FIRST_RECORDS = 1 << 16  # runs that there is room for at first; room grows as needed


class Walked(NamedTuple):
    """Runs in order, their extra cost, and what a byte given up has cost on average."""

    runs: np.ndarray
    extra: float
    price: float


@register(
    "beam",
    graphs="any",
    objective="the goal itself: least cost within a peak, or least peak within a cost, of the whole step",
    optimal="",
    complexity="O(w n^2) for a beam of w states",
    citation="beam search over the needed sets of the pebble game (Sethi, SIAM J. Comput. 1975), read backwards",
)
def beam(problem: Problem) -> Iterator[Schedule]:
    """Walks from the end of the step to its start and keeps the best states; decides the order of all runs, and what
    runs again where. Deterministic unless the time limit cuts it short."""
    graph = problem.graph
    yield Schedule.baseline(graph, "beam")
    if not graph.needed.any():
        return
    search = BeamSearch(problem)
    if problem.room is not None:
        found = search.least_cost(problem.room)
    else:
        found = search.least_peak(np.inf if problem.max_overhead is None else problem.max_overhead)
    for f in found:
        yield Schedule.from_runs(graph, f.runs.tolist(), "beam")


class BeamSearch:
    """Beams of one problem."""

    def __init__(self, problem: Problem):
        self.problem, self.graph = problem, problem.graph
        self.plain = plain_activation_bytes(self.graph)
        self.net = network(self.graph, _weights(problem), SMALL_SHARE * self.plain)
        self.all_cost = float(self.net.weight[self.graph.needed].sum())
        self.price = self.all_cost / max(1, self.plain) / 3  # of a byte; a guess until one is found
        a = self.graph.arrays
        degree = np.diff(a.in_ptr) + np.diff(a.out_ptr)
        self.flipped = np.empty(kernel.CHAIN_MOST_RUNS * int(degree.max()) + 1, np.int64)
        self.records = np.empty((FIRST_RECORDS, 2), np.int64)
        size = len(a.producer) * len(self.graph.ops) * WAYS[0].width
        self.long = size > MOST_WORK  # a walk takes seconds
        least = LEAST_WAYS
        affordable = int(np.clip(MOST_WORK / size, least, len(WAYS)))
        self.tries = affordable if problem.work >= 1 else least

    def least_cost(self, cap: int) -> Iterator[Walked]:
        """Ever cheaper ways to stay within a cap."""
        best: Walked | None = None
        scores: list[tuple[float, BeamWay]] = []
        for way in (*PROBE, *WAYS[: self.tries]):
            found = self.walk(cap, way)
            if found is None:
                continue
            scores.append((found.extra, way))
            if best is None or found.extra < best.extra:
                best = found
                self.price = found.price or self.price
                yield found
            if self._overhead(best) <= EPS:
                return
            self.problem.progress(f"beam: +{self._overhead(best):.2%}")
        for _, way in sorted(scores, key=lambda s: s[0])[: 2 if self.tries >= WAYS_FOR_WIDE else 0]:
            found = self.walk(cap, way._replace(width=WIDE_STATES))
            if found is not None and best is not None and found.extra < best.extra:
                best = found
                yield found

    def least_peak(self, max_overhead: float) -> Iterator[Walked]:
        """Ever smaller caps within which a walk costs at most that part of the plain cost more."""
        low, high = self.graph.beside_resident(bounds.single_op(self.graph).bytes), self.plain
        # Of long walks those first that end least often: a cap at which all end costs as many walks as there are ways.
        few = WAYS[: max(LEAST_WAYS, self.tries // 3)]
        ways = PROBE[::-1] if self.long else PROBE + few
        cap, close = low, CLOSE_SHARE * self.plain
        while low <= high and (high - low > close or cap == low) and self.problem.time_left > 0:
            found = self._cheap_enough(cap, max_overhead, ways)
            if found is None:
                low = cap + 1
            else:
                yield found
                high = cap - 1
            cap = (low + high) // 2

    def _cheap_enough(self, cap: int, max_overhead: float, ways: Iterable[BeamWay]) -> Walked | None:
        for way in ways:
            found = self.walk(cap, way)
            if found is not None:
                self.price = found.price or self.price
                if self._overhead(found) <= max_overhead + EPS:
                    return found
        return None

    def _overhead(self, found: Walked) -> float:
        """Extra cost, without the trace of what is free, as a part of the plain cost."""
        again = np.bincount(found.runs, minlength=len(self.graph.ops)) - self.graph.needed
        plain = float(self.problem.weights[self.graph.needed].sum())
        return float(again @ self.problem.weights) / plain if plain > 0 else 0.0

    def walk(self, cap: int, way: BeamWay) -> Walked | None:
        """The cheapest walk that a beam finds within a cap; None where all its states end, or time does."""
        now, to, spare, other = (kernel.pool(way.width, len(self.graph.values), len(self.graph.ops)) for _ in range(4))
        aim = kernel.BeamAim(cap, int(cap * way.soft), self.price * way.price, way.window, DROPS_PER_STATE)
        self._start(now)
        states, used = 1, 0
        for _ in range(int(self.graph.needed.sum())):
            following = -1
            while following < 0:
                following, used = kernel.level(
                    now, states, to, spare, other, self.records, used, self.net, aim, self.flipped
                )
                if following < 0:
                    self.records = np.concatenate([self.records, np.empty_like(self.records)])
            if following == 0 or self.problem.time_left <= 0:
                return None
            now, to, states = to, now, following
        best = int(np.argmin(now.extra[:states]))
        if used + kernel.CHAIN_MOST_RUNS > len(self.records):
            self.records = np.concatenate([self.records, np.empty_like(self.records)])
        kernel.put_down(now, best, self.records, used)
        extra, dropped = float(now.extra[best]), float(now.dropped[best])
        return Walked(kernel.runs_of(self.records, now.record[best]), extra, extra / max(1.0, dropped))

    def _start(self, pool: kernel.Pool) -> None:
        """The first state: the values that must be there at the end."""
        a = self.graph.arrays
        live = a.keep & (a.producer >= 0)
        pool.live[0], pool.retired[0] = live, ~self.graph.needed
        pool.held[0], pool.top[0] = a.bytes[live].sum(), int(np.flatnonzero(self.graph.needed)[-1])
        pool.key[0] = np.bitwise_xor.reduce(self.net.code[live])
        pool.record[0] = -1


def network(graph: Graph, weights: np.ndarray, small: float) -> kernel.Net:
    """The graph for the kernel. small : values of at most that many bytes are not dropped for their own sake."""
    a, needed = graph.arrays, graph.needed
    b = graph.boundary
    after = np.ones(len(graph.ops), np.bool_) if b is None else depends(b, a)
    shared = set(graph.ops[b].inputs + graph.ops[b].outputs) if b is not None else set()
    made = np.flatnonzero((a.producer >= 0) & (a.bytes > small))
    made = made[needed[a.producer[made]]]
    return kernel.Net(
        a.bytes, a.producer, a.in_ptr, a.in_ids, a.out_ptr, a.out_ids,
        *compressed_rows([o for o in readers if needed[o]] for readers in graph.consumers),
        *compressed_rows([v for v in op.inplace if a.producer[v] >= 0 and v not in shared] for op in graph.ops),
        a.workspace, a.recompute, after, weights,
        np.random.default_rng(0).integers(0, 2**64, len(graph.values), np.uint64),
        made[np.argsort(-a.producer[made], kind="stable")], a.boundary,
    )  # fmt: skip


def _weights(problem: Problem) -> np.ndarray:
    """The cost of each op, with a trace of its seconds and a count, so that what is free is not done in vain."""
    weights = problem.weights.astype(np.float64)
    total = float(weights[problem.graph.needed].sum()) or 1.0
    seconds = problem.graph.weights("seconds")
    s = float(seconds[problem.graph.needed].sum())
    return weights + (1e-3 * total / s * seconds if s > 0 else 0.0) + 1e-5 * total / max(1, len(weights))
