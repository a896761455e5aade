"""Operator-level search on the storages of the whole step."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..graph import Graph
from ..kernels import anneal as kernel
from ..kernels import cuts
from ..kernels.modes import HOLD, KEEP, TRANSIENT
from ..schedule import Schedule
from ..simulate import simulate
from ..structure.saved import Dropping
from .base import Problem
from .registry import register

# Sizes that are counted, not timed, so that the same seed gives the same plan: elementary steps (runs and edges met)
# per goal and chain, about two seconds of one core.
WORK = 5e8
TINY = 1e-4  # values smaller than this part of all candidates are always kept


class Found(NamedTuple):
    """A point the search has reached: modes, peak without resident bytes, extra cost."""

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
    need; simulated annealing improves them, half of its proposals aimed at what is live at the peak; a descent over all
    single changes ends it. Deterministic for a seed unless the time limit cuts it short. No optimality claim: `gap`
    tells the distance from the certified bound.
    """
    search = Search(problem)
    yield Schedule.baseline(problem.graph, "auto")
    if not len(search.candidates):
        return
    limit = math.inf if problem.limit is None else problem.limit - problem.graph.resident_bytes
    for _ in range(3):
        found = search.solve(limit, problem.max_overhead)
        schedules = [s for s in (search.schedule(f) for f in found) if s is not None]
        yield from schedules
        over = min((simulate(problem.graph, s).peak_bytes for s in schedules), default=0) - (problem.limit or 0)
        # The search leaves tiny values out of its books. If that is what breaks the limit, aim lower by as much.
        if problem.limit is None or not 0 < over < 0.02 * limit or problem.time_left <= 0:
            return
        limit -= 1.5 * over


class Search:
    """The reduced problem: ops that move no memory and tiny values are left out of the scoring."""

    def __init__(self, problem: Problem):
        self.problem, self.graph = problem, problem.graph
        self.dropping = Dropping(self.graph)
        a = self.graph.arrays
        size = a.bytes
        moves = np.array([any(size[v] for v in o.outputs) or i == a.boundary for i, o in enumerate(self.graph.ops)])
        once = np.array([o.name.split("|")[1:2] == ["snapshot"] for o in self.graph.ops], np.bool_)
        self.order = np.array([o for o in self.dropping.order if moves[o] and not once[o]], np.int64)
        kept_in = np.zeros(len(self.graph.ops), np.bool_)
        kept_in[self.order] = True
        made = np.array([p >= 0 and kept_in[p] for p in a.producer], np.bool_)
        self.producer = np.where(made, a.producer, -1)
        total = float(size[self.dropping.candidates].sum())
        worth = (size > TINY * total) & made
        self.candidates = np.array([v for v in self.dropping.candidates if worth[v]], np.int64)
        position = np.full(len(self.graph.ops), -1, np.int64)
        position[self.order] = np.arange(len(self.order))
        self.position = position
        by = np.argsort(position[self.producer[self.candidates]], kind="stable")
        self.candidates = self.candidates[by]
        self.weights = self._weights()
        self.base_cost = float(self.weights[self.order].sum())
        self.cap = 12 * len(self.order) + 200
        self.baseline = self._point(self._all(KEEP))

    def _weights(self) -> np.ndarray:
        """The cost of each op, with a trace of its seconds and a count, so that what is free is not done in vain."""
        w = self.problem.weights.astype(np.float64)
        total = float(w[self.dropping.order].sum()) or 1.0
        seconds = self.graph.weights("seconds")
        s = float(seconds[self.dropping.order].sum())
        return w + (1e-3 * total / s * seconds if s > 0 else 0.0) + 1e-5 * total / max(1, len(self.order))

    @cached_property
    def _arguments(self) -> tuple[Any, ...]:
        """The reduced search in the form the kernels take."""
        # Positions change with the reduced order; a drop happens before the first remaining op at or after it.
        left = np.flatnonzero(np.isin(self.dropping.order, self.order))
        drop_at = np.searchsorted(left, self.dropping.drop_at)
        ids = np.array(sorted(self.candidates, key=lambda v: drop_at[v]), np.int64)
        ptr = np.searchsorted(drop_at[ids], np.arange(len(self.order) + 1)).astype(np.int64)
        return (self.order, ptr, ids, self.producer.astype(np.int64), self.weights, self.dropping.shared, self.base_cost)

    @cached_property
    def _classes(self) -> np.ndarray:
        """Per candidate: which kind of op, with which shape, makes it as its which output."""
        keys: dict[Any, int] = {}
        rows = []
        for v in self.candidates:
            op = self.graph.ops[self.producer[v]]
            kind = (op.name.split("|", 1)[-1] if "|" in op.name else self.graph.values[v].bytes, op.outputs.index(v))
            rows.append(keys.setdefault(kind, len(keys)))
        return np.array(rows, np.int64)

    def _all(self, mode: int) -> np.ndarray:
        modes = self.dropping.all(KEEP)
        modes[self.candidates] = mode
        return modes

    def _point(self, modes: np.ndarray) -> Found:
        goal = (math.inf, math.inf, 1.0, 1.0, 0.0, 0.0)
        none = np.empty(0, np.int64)
        modes, top, extra, _ = kernel.descend(modes, none, self._arguments, self.graph.arrays, goal, self.cap)
        return Found(modes, top, extra)

    def schedule(self, found: Found) -> Schedule | None:
        """The schedule of a point, over all ops."""
        runs = self.dropping.runs(found.modes, cap=20 * len(self.dropping.order) + 1000)
        return None if runs is None else Schedule.from_runs(self.graph, runs, "auto")

    # -- seeds -----------------------------------------------------------------------------------------------------
    def seeds(self) -> list[Found]:
        """Points to start from, from costly and small to cheap and large."""
        found = [self.baseline]
        cheap = self._cheap_values()
        for transient in cheap:
            modes = self._all(KEEP)
            modes[transient] = TRANSIENT
            found.append(self._point(modes))
            modes[transient] = HOLD
            found.append(self._point(modes))
            for scale in (0.5, 1.0, 2.0, 4.0):
                for rest in (HOLD, KEEP):
                    found.append(self._point(self._cut(transient, scale, rest)))
        return found

    def _cheap_values(self) -> list[np.ndarray]:
        """Sets of values that cost little to make again for the bytes they hold, from none to most."""
        size = self.graph.arrays.bytes
        density = np.array([self.weights[self.producer[v]] / max(1, size[v]) for v in self.candidates])
        levels = np.quantile(density, [0.3, 0.5, 0.7]) if len(density) else []
        sets = [self.candidates[:0]] + [self.candidates[density <= q] for q in levels]
        unique = {s.tobytes(): s for s in sets}
        return list(unique.values())

    def _cut(self, transient: np.ndarray, scale: float, rest: int) -> np.ndarray:
        """Modes that keep what crosses the cuts of the revised objective and make the rest again by segment.

        scale : weight of a segment's own bytes against what is kept: more means shorter segments.
        rest : mode of the values inside segments that are not transient.
        """
        size = self.graph.arrays.bytes.astype(np.float64)
        end = int(self._arguments[1].searchsorted(1)) if len(self.candidates) else 0
        end = max(1, min(end - 1, len(self.order)) if end else len(self.order))
        first = self.position[self.producer[self.candidates]]
        last = np.array([self._last_forward_use(v, end) for v in self.candidates], np.int64)
        passing = np.zeros(end + 2)
        inside = np.zeros(end + 1)
        is_transient = np.zeros(len(size), np.bool_)
        is_transient[transient] = True
        for v, a, b in zip(self.candidates, first, last, strict=True):
            if a < end:
                passing[a + 1] += size[v]
                passing[min(b, end) + 1] -= size[v]
                if not is_transient[v] or rest == KEEP:
                    inside[a + 1] += size[v]
        cross = np.cumsum(passing)[: end + 1]
        cross[0] = cross[end] = 0.0
        at = cuts.revised(cross, np.cumsum(inside) * scale)
        modes = self._all(HOLD)
        modes[transient] = TRANSIENT
        for v, a, b in zip(self.candidates, first, last, strict=True):
            if np.any((at > a) & (at <= b)):
                modes[v] = KEEP
            elif len(at) and a >= at[-1] and not is_transient[v]:
                modes[v] = KEEP  # backward begins there: nothing is gained by making it twice
            elif rest == KEEP and self.weights[self.producer[v]] > 0 and not is_transient[v]:
                modes[v] = HOLD
        return modes

    def _last_forward_use(self, v: int, end: int) -> int:
        return max((int(p) for o in self.graph.consumers[v] if 0 <= (p := self.position[o]) < end), default=-1)

    # -- search ----------------------------------------------------------------------------------------------------
    def solve(self, limit: float, max_overhead: float | None) -> list[Found]:
        """The best points found for: least extra cost with peak <= limit; or least peak with extra cost <= max_overhead
        (a part of the base cost); or, with neither, least peak."""
        p0, c0 = max(1.0, self.baseline.peak), self.base_cost
        if max_overhead is not None:
            # Of the true weights: the search's own are a little larger, so it keeps to the limit.
            most = max_overhead * float(self.problem.weights[self.dropping.order].sum())
            goal = (math.inf, most, p0, c0, 1.0, 1e-3)
        elif limit < math.inf:
            goal = (float(limit), math.inf, p0, c0, 1e-4, 1.0)
        else:
            goal = (math.inf, math.inf, p0, c0, 1.0, 1e-3)
        ranked = sorted(self.seeds(), key=lambda f: float(kernel.score(f.peak, f.extra, goal)))
        starts = ranked[:4]
        work = len(self.order) + len(self.graph.arrays.in_ids) + len(self.graph.arrays.bytes)
        iterations = int(min(3e3 * len(self.candidates), max(4e3, WORK / (4 * work))) * self.problem.effort)
        rounds = [(f, self.problem.seed * 1000 + i) for i, f in enumerate(starts)]
        found = self._chains(rounds, goal, iterations, 0.02)
        for r, temperature in ((1, 0.008), (2, 0.003)):
            best = sorted(found, key=lambda f: float(kernel.score(f.peak, f.extra, goal)))[:2]
            self._report(best[0])
            if self.problem.time_left <= 0:
                break
            rounds = [(f, self.problem.seed * 1000 + 10 * r + i) for i, f in enumerate(best)]
            found += self._chains(rounds, goal, iterations, temperature)
        best = sorted(found, key=lambda f: float(kernel.score(f.peak, f.extra, goal)))[:2]
        if self.problem.time_left > 0:
            for f in best[:1]:
                modes, top, extra, _ = kernel.descend(
                    f.modes, self.candidates, self._arguments, self.graph.arrays, goal, self.cap
                )
                best.append(Found(modes, top, extra))
        return best

    def _chains(
        self, rounds: list[tuple[Found, int]], goal: tuple[float, ...], iterations: int, temperature: float
    ) -> list[Found]:
        def one(start: Found, seed: int) -> Found:
            point = start
            slices = 8  # so that a time limit is met
            for k in range(slices):
                if self.problem.time_left <= 0:
                    break
                heat = temperature * (1 - k / slices) ** 2
                modes, top, extra, _ = kernel.anneal(
                    point.modes, self.candidates, self._classes, self._arguments, self.graph.arrays, goal,
                    iterations // slices, heat, seed + 100 * k, self.cap,
                )  # fmt: skip
                point = Found(modes, top, extra)
            return point

        with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
            return list(pool.map(lambda r: one(*r), rounds))

    def _report(self, best: Found) -> None:
        peak = best.peak + self.graph.resident_bytes
        self.problem.progress(f"auto: peak {peak / 2**20:.1f} MiB at +{best.extra / self.base_cost:.1%}")

