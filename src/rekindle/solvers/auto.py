"""Operator-level search on the storages of the whole step."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..kernels import anneal as kernel
from ..kernels import cuts
from ..kernels.modes import HOLD, KEEP, TRANSIENT
from ..schedule import Schedule
from ..simulate import simulate
from ..structure.reduced import Reduced
from ..structure.saved import Dropping
from .base import Problem
from .registry import register

# How much one chain of proposals may do, counted in elementary steps and not in seconds, so that the same seed gives
# the same plan: about a second on one core for small graphs, three for large ones.
WORK = 1.5e8
Goal = tuple[float, float, float, float, float, float]


class Found(NamedTuple):
    """A point the search has reached: modes (of the reduced problem), peak without resident bytes, extra cost."""

    modes: np.ndarray
    peak: float
    extra: float


@register(
    "auto",
    graphs="any",
    objective="the goal itself: least cost within a peak, or least peak within a cost, of the whole step",
    optimal="",
    complexity="O(k n) for k proposals on n ops and edges; k is chosen so that a few seconds pass",
    citation="annealing over keep / hold / transient per storage, seeded by the revised chain objective of "
    "Hong et al. (JPDC 2025, arXiv 2502.12499)",
)
def auto(problem: Problem) -> Iterator[Schedule]:
    """Decides for every storage that forward makes whether it is kept for backward, made again once and held, or made
    again at each need, and scores the decision by the exact peak and cost of the whole step.

    Seeds come from cutting the forward by the revised objective of Hong et al., with cheap values made again at each
    need; simulated annealing improves them, a good part of its proposals aimed at what is live at the peak; a descent
    over all single changes ends it. Deterministic for a seed unless the time limit cuts it short. No optimality claim:
    `gap` tells the distance from the certified bound.
    """
    search = Search(problem)
    yield Schedule.baseline(problem.graph, "auto")
    if not len(search.reduced.candidates):
        return
    limit = math.inf if problem.limit is None else problem.limit - problem.graph.resident_bytes
    # The search leaves negligible values out of its books. What they hold at the peak is allowed for beforehand, and
    # where they break the limit all the same, the search goes on from where it is and aims lower by as much.
    aim = limit - search.left_out
    found: list[Found] | None = None
    for _ in range(3):
        found = search.solve(aim, problem.max_overhead, found)
        schedules = [s for s in map(search.schedule, found) if s is not None]
        yield from schedules
        least = min((simulate(problem.graph, s).peak_bytes for s in schedules), default=0)
        over = least - (problem.limit or 0)
        if problem.limit is None or not 0 < over < 0.05 * limit or problem.time_left <= 0:
            return
        aim -= 1.5 * over


class Search:
    """Seeds and chains on the reduced problem."""

    def __init__(self, problem: Problem):
        self.problem, self.graph = problem, problem.graph
        self.dropping = Dropping(self.graph)
        self.reduced = Reduced(self.graph, self.dropping)
        self.weights = self._weights()
        self.base_cost = float(self.weights.sum())
        self.cap = 12 * len(self.reduced.ops) + 200
        self.baseline = self._point(self._all(KEEP))
        whole = simulate(self.graph, Schedule.baseline(self.graph)).peak_bytes - self.graph.resident_bytes
        self.left_out = max(0.0, whole - self.baseline.peak)  # bytes at the peak that the reduced problem does not see

    def _weights(self) -> np.ndarray:
        """The cost of each op, with a trace of its seconds and a count, so that what is free is not done in vain."""
        ops = self.reduced.ops
        w = self.problem.weights.astype(np.float64)[ops]
        total = float(w.sum()) or 1.0
        seconds = self.graph.weights("seconds")[ops]
        s = float(seconds.sum())
        return w + (1e-3 * total / s * seconds if s > 0 else 0.0) + 1e-5 * total / max(1, len(ops))

    @cached_property
    def _arguments(self) -> tuple[Any, ...]:
        """The reduced problem in the form the kernels take."""
        r = self.reduced
        order = np.arange(len(r.ops), dtype=np.int64)
        return order, r.drop_ptr, r.drop_ids, r.arrays.producer, self.weights, r.shared, self.base_cost

    @cached_property
    def _classes(self) -> np.ndarray:
        """Per candidate: which kind of op, with which shape, makes it as its which output."""
        r = self.reduced
        keys: dict[Any, int] = {}
        rows = []
        for v in r.candidates:
            op = self.graph.ops[r.ops[r.arrays.producer[v]]]
            kind = op.name.split("|", 1)[-1] if "|" in op.name else int(r.arrays.bytes[v])
            rows.append(keys.setdefault((kind, op.outputs.index(int(r.values[v]))), len(keys)))
        return np.array(rows, np.int64)

    def _all(self, mode: int) -> np.ndarray:
        modes = np.full(len(self.reduced.values), KEEP, np.int8)
        modes[self.reduced.candidates] = mode
        return modes

    def _point(self, modes: np.ndarray) -> Found:
        anything: Goal = (math.inf, math.inf, 1.0, 1.0, 0.0, 0.0)
        none = np.empty(0, np.int64)
        modes, top, extra, _ = kernel.descend(modes, none, self._arguments, self.reduced.arrays, anything, self.cap)
        return Found(modes, top, extra)

    def schedule(self, found: Found) -> Schedule | None:
        """The schedule of a point, over all ops and values."""
        modes = self.dropping.all(KEEP)
        modes[self.reduced.values] = found.modes
        runs = self.dropping.runs(modes, cap=20 * len(self.dropping.order) + 1000)
        return None if runs is None else Schedule.from_runs(self.graph, runs, "auto")

    # -- seeds -----------------------------------------------------------------------------------------------------
    def seeds(self) -> list[Found]:
        """Points to start from, between cheap and large and costly and small."""
        found = [self.baseline]
        for transient in self._cheap_values():
            for mode in (TRANSIENT, HOLD):
                modes = self._all(KEEP)
                modes[transient] = mode
                found.append(self._point(modes))
            for scale in (0.5, 1.0, 2.0, 4.0):
                found.append(self._point(self._cut(transient, scale)))
        return found

    def _cheap_values(self) -> list[np.ndarray]:
        """Sets of values that cost little to make again for the bytes they hold, from none to most."""
        r = self.reduced
        density = self.weights[r.arrays.producer[r.candidates]] / np.maximum(1, r.arrays.bytes[r.candidates])
        sets = [r.candidates[:0]] + [r.candidates[density <= q] for q in np.quantile(density, [0.3, 0.5, 0.7])]
        return list({s.tobytes(): s for s in sets}.values())

    def _cut(self, transient: np.ndarray, scale: float) -> np.ndarray:
        """Modes that keep what crosses the cuts of the revised objective and make the rest again segment by segment.

        scale : weight of a segment's own bytes against what is kept: more means shorter segments.
        """
        r = self.reduced
        size = r.arrays.bytes
        end = int(np.searchsorted(r.drop_ptr, 1)) - 1  # position of the first drop: where forward ends
        end = max(1, min(end, len(r.ops)))
        first = np.minimum(r.arrays.producer[r.candidates], end - 1)
        last = self._last_forward_use[r.candidates]
        is_transient = np.zeros(len(size), np.bool_)
        is_transient[transient] = True
        passing, inside = np.zeros(end + 2), np.zeros(end + 1)
        np.add.at(passing, first + 1, size[r.candidates])
        np.add.at(passing, np.minimum(np.maximum(last, first), end) + 1, -size[r.candidates])
        held = ~is_transient[r.candidates]
        np.add.at(inside, first[held] + 1, size[r.candidates][held])
        cross = np.cumsum(passing)[: end + 1]
        cross[0] = cross[end] = 0.0
        at = cuts.revised(cross, np.cumsum(inside) * scale)
        crosses = np.searchsorted(at, first, side="right") < np.searchsorted(at, last, side="right")
        # Backward begins behind the last cut: nothing is gained by making twice what lies there.
        behind = (first >= at[-1]) & held if len(at) else np.zeros(len(first), np.bool_)
        modes = self._all(HOLD)
        modes[transient] = TRANSIENT
        modes[r.candidates[crosses | behind]] = KEEP
        return modes

    @cached_property
    def _last_forward_use(self) -> np.ndarray:
        """int64 [values]: position of the last op before the first drop that reads the value, -1: none."""
        r = self.reduced
        end = int(np.searchsorted(r.drop_ptr, 1)) - 1
        last = np.full(len(r.values), -1, np.int64)
        for o in range(min(end, len(r.ops))):
            last[r.arrays.in_ids[r.arrays.in_ptr[o] : r.arrays.in_ptr[o + 1]]] = o
        return last

    # -- search ----------------------------------------------------------------------------------------------------
    def solve(self, limit: float, max_overhead: float | None, found: list[Found] | None = None) -> list[Found]:
        """The best points found for: least extra cost with peak <= limit; or least peak with extra cost <= max_overhead
        (a part of the base cost); or, with neither, least peak.

        found : points to go on from, by the last and coolest round alone.
        """
        p0, c0 = max(1.0, self.baseline.peak), self.base_cost
        goal: Goal = (math.inf, math.inf, p0, c0, 1.0, 1e-3)
        if max_overhead is not None:
            # Of the true weights: the search's own are a little larger, so it keeps to the limit.
            goal = (math.inf, max_overhead * float(self.problem.weights[self.reduced.ops].sum()), p0, c0, 1.0, 1e-3)
        elif limit < math.inf:
            goal = (float(limit), math.inf, p0, c0, 1e-4, 1.0)

        def rank(f: Found) -> float:
            return float(kernel.score(f.peak, f.extra, goal))

        rounds_to_go: tuple[tuple[int, float], ...] = ((4, 0.02), (2, 0.008), (2, 0.003))
        if found is None:
            found = sorted(self.seeds(), key=rank)[:4]
        else:
            rounds_to_go = rounds_to_go[-1:]
        for r, (starts, heat) in enumerate(rounds_to_go):
            rounds = [(f, self.problem.seed * 1000 + 10 * r + i) for i, f in enumerate(found[:starts])]
            found = sorted(found + self._chains(rounds, goal, heat), key=rank)
            self._report(found[0])
            if self.problem.time_left <= 0:
                return found[:2]
        modes, top, extra, _ = kernel.descend(
            found[0].modes, self.reduced.candidates, self._arguments, self.reduced.arrays, goal, self.cap
        )
        return [Found(modes, top, extra), *found[:2]]

    def _chains(self, rounds: list[tuple[Found, int]], goal: Goal, heat: float) -> list[Found]:
        """One annealing chain from each start, two at a time."""
        r = self.reduced
        larger = min(3.0, max(1.0, r.work / 4000))
        proposals = min(3e3 * len(r.candidates), WORK * larger / r.work) * self.problem.effort
        slices = 8  # so that a time limit is met

        def one(start: Found, seed: int) -> Found:
            point = start
            for k in range(slices):
                if self.problem.time_left <= 0:
                    break
                modes, top, extra, _ = kernel.anneal(
                    point.modes, r.candidates, self._classes, self._arguments, r.arrays, goal,
                    max(64, int(proposals / slices)), heat * (1 - k / slices) ** 2, seed + 100 * k, self.cap,
                )  # fmt: skip
                point = Found(modes, top, extra)
            return point

        self._classes, self._arguments  # noqa: B018 - made before the threads share them
        with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
            return list(pool.map(lambda x: one(*x), rounds))

    def _report(self, best: Found) -> None:
        peak = best.peak + self.graph.resident_bytes
        self.problem.progress(f"auto: peak {peak / 2**20:.1f} MiB at +{best.extra / self.base_cost:.1%}")
