"""Divides one goal of a step among its parts: for each part one of its ways, such that the whole step keeps the goal.

Problem. A step passes through moments. At each moment some bytes are held outside of the parts, some parts hold what their
forward saved, and at most a few run. Choose one way for each part, such that no moment takes more than the budget and the extra
cost is least; or such that the extra cost stays within a limit and the largest moment is least.

This is a multiple-choice knapsack problem with one constraint for each moment. HiGHS solves it as a mixed-integer program,
with a certified bound. It generalises the dynamic program for chains of Herrmann et al. (rotor): moments may be in any
order, one part may be called several times, and parts may lie in parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..planning import planner
from .ways import Figures

# The time of one mixed-integer program. Equal parts make many choices equal, so most of it goes into proving the last percent:
# on 28 steps of 24 and 48 layers of five models, 1 s gave the same peaks and extra costs.
TIME_LIMIT_S = 0.3
LONGER_TIMES = 30  # times that limit, if no choice was found until then; a guess
PEAK_GAP_SHARE = 3e-3  # of the least peak, by which the answer may miss it; a guess
# The answer may miss the least extra cost by 1 % of this cost and 0.05 % of the step. On steps of 24 layers of three models at
# 16 budgets each this cost at most 1 % of the extra cost, and took a third of the time of a gap of 0.3 %.
COST_GAP_SHARE = 1e-2
SLACK_SHARE = 0.05  # of the parts' plain cost: COST_GAP_SHARE of it may be missed besides
TOLERANCE_SHARE = 4e-6  # of the budget, left free where HiGHS misses it: it may miss constraints by 1e-6
TIME_IS_UP = 1  # scipy's status of a program whose time limit came first
PHASES = ("held", "forward", "backward", "near")  # the last one while the part that comes next runs


@dataclass(frozen=True)
class Moment:
    """A time of the step.

    outside_bytes : held outside of the parts. parts : (part, one of PHASES), for each call of a part that holds bytes now.
    inside : (part, bytes) that the code of a part holds around the parts in it; they are there only if the part is open.
    """

    outside_bytes: int
    parts: tuple[tuple[int, str], ...] = ()
    inside: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Division:
    """The ways chosen.

    chosen : one index of a way for each part; of a part inside of another one that is not open, it means nothing.
    peak_bytes : the largest moment. extra : cost of all parts beside their plain cost.
    bound : certified: no choice among these ways costs less (of a budget), or takes fewer bytes (of other goals), with these
        moments.
    """

    chosen: tuple[int, ...]
    peak_bytes: int
    extra: float
    bound: float


@dataclass(frozen=True)
class Step:
    """A step to be divided.

    parts : the ways of each part. calls : how often each part is called in the step.
    host_bytes : that the host may hold of what is copied to it.
    within : of each part, the part that it lies in, or None. The first way of a part that has others in it is to leave it open:
        then the parts in it run by their own ways; by its other ways they do not run by themselves.
    """

    parts: Sequence[Sequence[Figures]]
    calls: Sequence[int]
    moments: Sequence[Moment]
    within: Sequence[int | None]
    host_bytes: float = math.inf

    def runs(self, part: int, chosen: Sequence[int]) -> bool:
        """Whether the part runs by its own way: every part around it is open."""
        around = self.within[part]
        return around is None or chosen[around] == OPEN and self.runs(around, chosen)

    def peak(self, chosen: Sequence[int]) -> int:
        """The bytes of the largest moment with these ways."""
        on = [self.runs(p, chosen) for p in range(len(self.parts))]
        opened = [x and c == OPEN for x, c in zip(on, chosen, strict=True)]
        return max(
            (
                m.outside_bytes
                + sum(_bytes(self.parts[p][chosen[p]], k) for p, k in m.parts if on[p])
                + sum(n for p, n in m.inside if opened[p])
                for m in self.moments
            ),
            default=0,
        )

    def extra(self, chosen: Sequence[int]) -> float:
        """The extra cost of all calls with these ways."""
        rows = zip(self.parts, chosen, self.calls, strict=True)
        return float(sum(n * w[c].extra for p, (w, c, n) in enumerate(rows) if self.runs(p, chosen)))

    def fits_host(self, chosen: Sequence[int]) -> bool:
        """Whether the host may hold what these ways copy to it."""
        rows = zip(self.parts, chosen, self.calls, strict=True)
        return sum(n * w[c].away_bytes for p, (w, c, n) in enumerate(rows) if self.runs(p, chosen)) <= self.host_bytes


OPEN = 0  # the first way


def divide(step: Step, *, budget: int | None = None, most_extra: float | None = None) -> Division | None:
    """The best choice of one way for each part; None: no choice keeps the budget.

    budget : bytes that no moment may exceed; the extra cost is then least.
    most_extra : without a budget: the extra cost within which the largest moment is made least; None: at any cost.
    """
    problem = _Program(step)
    if budget is not None:
        return problem.cheapest(budget)
    small = problem.smallest(most_extra)
    if small is None:
        return None
    cheaper = problem.cheapest(small.peak_bytes)
    if cheaper is None or cheaper.extra >= small.extra:
        return small
    return Division(cheaper.chosen, cheaper.peak_bytes, cheaper.extra, small.bound)


def offer(step: Step, found: Division, plain: float, limit: int | None) -> tuple[int, float] | None:
    """(bytes, overhead) of a somewhat larger budget that costs far less than `found`; None: there is none.

    plain : cost of the plain step. limit : bytes that `found` had to keep; None: no budget. Resident bytes count nowhere.
    """
    if limit is None or found.extra < planner.STEEP_OVERHEAD * plain:
        return None
    for x in np.linspace(1.0, planner.OFFER_REACH, 4)[1:]:
        larger = divide(step, budget=int(limit * x))
        if larger is not None and larger.extra <= planner.OFFER_SHARE * found.extra:
            return larger.peak_bytes, larger.extra / plain
    return None


def _bytes(f: Figures, phase: str) -> int:
    return f.bytes[PHASES.index(phase)]


class _Program:
    """The mixed-integer program: a variable for each way of each part, and the peak."""

    def __init__(self, step: Step):
        parts = step.parts
        self.step, moments = step, _largest(step.moments, [any(f.away_bytes for f in ways) for ways in parts])
        self.first = np.cumsum([0, *map(len, parts)])
        self.count = int(self.first[-1])
        self.costs = np.array([n * f.extra for ways, n in zip(parts, step.calls, strict=True) for f in ways])
        self.away = np.array([n * f.away_bytes for ways, n in zip(parts, step.calls, strict=True) for f in ways], float)
        plain = sum(n * w[0].plain for w, n, i in zip(parts, step.calls, step.within, strict=True) if i is None)
        self.slack = SLACK_SHARE * plain
        self.rows = np.zeros((len(moments), self.count))
        for i, m in enumerate(moments):
            for p, phase in m.parts:
                self.rows[i, self.first[p] : self.first[p + 1]] += [_bytes(f, phase) for f in parts[p]]
            for p, n in m.inside:
                self.rows[i, self.first[p] + OPEN] += n
        self.outside = np.array([m.outside_bytes for m in moments], float)
        kept = self._not_exceeded()
        self.rows, self.outside = self.rows[kept], self.outside[kept]

    def _not_exceeded(self) -> list[int]:
        """The moments that no other one exceeds by every choice: the others bind nothing, and most of HiGHS's time goes with
        their number."""
        inner = np.array([around is not None for around in self.step.within], bool)
        kept: list[int] = []
        for i in np.argsort(-(self.outside + self._most(self.rows).sum(axis=1)), kind="stable"):
            more = self._most(self.rows[i] - self.rows[kept])
            more[:, inner] = np.maximum(more[:, inner], 0)  # a part in one that is not open runs by none of its ways
            if not (more.sum(axis=1) + self.outside[i] <= self.outside[kept]).any():
                kept.append(int(i))
        return sorted(kept)

    def _most(self, rows: np.ndarray) -> np.ndarray:
        """Of rows of numbers of all ways, the largest number of each part."""
        return np.maximum.reduceat(rows, self.first[:-1], axis=1)

    def cheapest(self, budget: int) -> Division | None:
        """The cheapest choice within the budget; None: there is none."""
        room = budget - self.outside
        below = np.minimum.reduceat(np.minimum(self.rows, 0), self.first[:-1], axis=1).sum(axis=1)
        if (room < below).any():
            return None
        free = self._free()
        if self.step.peak(free) <= budget:
            return self._division(free, 0.0)
        unit = float(self.costs.max(initial=0)) or 1.0
        scale = max(1.0, float(budget))
        for tolerance in (0.0, TOLERANCE_SHARE, 100 * TOLERANCE_SHARE):
            limits = room / scale - tolerance
            solved = self._solve(
                self.costs / unit, self.rows / scale, limits, COST_GAP_SHARE, tolerance, self.slack / unit
            )
            if solved is None:
                return self._exactly(budget)
            chosen, bound = solved
            if self.step.peak(chosen) <= budget and self.step.fits_host(chosen):
                return self._division(chosen, bound * unit)
        return self._exactly(budget)

    def smallest(self, most_extra: float | None) -> Division | None:
        """The choice of the least peak within a cost."""
        scale = max(1.0, float(self.rows.max(initial=0) + self.outside.max(initial=0)))
        rows = np.hstack([self.rows / scale, -np.ones((len(self.rows), 1))])
        limits, unit = -self.outside / scale, 1.0
        if most_extra is not None:
            unit = max(most_extra, float(self.costs.max(initial=0)) * 1e-6, 1e-30)
            rows = np.vstack([rows, np.append(self.costs / unit, 0.0)])
            limits = np.append(limits, most_extra / unit)
        for tolerance in (0.0, TOLERANCE_SHARE, 100 * TOLERANCE_SHARE):
            if most_extra is not None:
                limits[-1] = most_extra / unit - tolerance
            solved = self._solve(np.append(np.zeros(self.count), 1.0), rows, limits, PEAK_GAP_SHARE, tolerance)
            if solved is None:
                break
            chosen, bound = solved
            cheap = most_extra is None or self.step.extra(chosen) <= most_extra
            if cheap and self.step.fits_host(chosen):
                return self._division(chosen, bound * scale)
        free = self._free()
        return self._division(free, 0.0) if most_extra is None or self.step.extra(free) <= most_extra else None

    def _free(self) -> list[int]:
        """The cheapest way of every part."""
        step, chosen = self.step, [OPEN] * len(self.step.parts)
        inside: dict[int | None, list[int]] = {}
        for p, around in enumerate(step.within):
            inside.setdefault(around, []).append(p)

        def cost(p: int) -> float:
            inner = sum(map(cost, inside.get(p, ())))
            costs = [step.calls[p] * w.extra + (inner if c == OPEN else 0.0) for c, w in enumerate(step.parts[p])]
            chosen[p] = costs.index(min(costs))
            return costs[chosen[p]]

        for p in inside.get(None, ()):
            cost(p)
        return chosen

    def _exactly(self, budget: int) -> Division | None:
        """The choice of the least peak, if it keeps a budget so tight that HiGHS misses it by a rounding."""
        least = self.smallest(None)
        return least if least is not None and least.peak_bytes <= budget else None

    def _division(self, chosen: Sequence[int], bound: float) -> Division:
        return Division(tuple(chosen), self.step.peak(chosen), self.step.extra(chosen), max(0.0, bound))

    def _solve(
        self,
        costs: np.ndarray,
        rows: np.ndarray,
        limits: np.ndarray,
        gap: float,
        tolerance: float,
        slack: float = 0.0,
    ) -> tuple[list[int], float] | None:
        """(the ways chosen, a lower bound on the objective); None: infeasible. A column after the ways is the peak.

        gap : part of the objective and of `slack` by which the answer may miss the best one.
        tolerance : share of the host's bytes that is left free.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_matrix

        # HiGHS knows gaps as parts of the objective alone: one more column, which is always 1, adds the slack to it.
        width, step = len(costs) + 1, self.step
        one, right = np.zeros((len(step.parts), width)), np.ones(len(step.parts))
        for p, around in enumerate(step.within):
            one[p, self.first[p] : self.first[p + 1]] = 1.0
            if around is not None:
                one[p, self.first[around] + OPEN] = -1.0
                right[p] = 0.0
        whole, low, top = np.zeros(width), np.zeros(width), np.ones(width)
        whole[: self.count] = 1
        top[self.count : -1] = np.inf
        low[-1] = 1.0
        constraints = [LinearConstraint(csr_matrix(one), right, right)]
        if len(rows):
            wide = np.hstack([rows, np.zeros((len(rows), 1))])
            constraints.append(LinearConstraint(csr_matrix(wide), -np.inf, limits))
        if self.away.sum() > step.host_bytes:
            row = np.append(self.away, np.zeros(width - self.count))
            scale = max(1.0, step.host_bytes)
            constraints.append(LinearConstraint(csr_matrix(row / scale), -np.inf, step.host_bytes / scale - tolerance))
        for times in (1, LONGER_TIMES):
            found = milp(
                np.append(costs, slack), integrality=whole, bounds=Bounds(low, top), constraints=constraints,
                options={"time_limit": times * TIME_LIMIT_S, "mip_rel_gap": gap},
            )  # fmt: skip
            if found.x is not None or found.status != TIME_IS_UP:
                break
        if found.x is None:
            return None
        chosen = [int(found.x[a:b].argmax()) for a, b in zip(self.first[:-1], self.first[1:], strict=True)]
        bound = found.mip_dual_bound
        return chosen, float(bound) - slack if bound is not None and np.isfinite(bound) else 0.0


def _largest(moments: Sequence[Moment], copies: Sequence[bool]) -> list[Moment]:
    """The moments that no other one exceeds in everything, among those with the same parts. copies : of each part, whether some
    way copies to the host; of others, "near" is "held"."""
    same: dict[tuple[tuple[int, str], ...], list[dict[int | None, int]]] = {}
    for m in moments:
        sizes: dict[int | None, int] = {None: m.outside_bytes}
        for p, n in m.inside:
            sizes[p] = sizes.get(p, 0) + n
        parts = sorted((p, "held" if phase == "near" and not copies[p] else phase) for p, phase in m.parts)
        known = same.setdefault(tuple(parts), [])
        if any(_covers(other, sizes) for other in known):
            continue
        known[:] = [x for x in known if not _covers(sizes, x)] + [sizes]
    return [
        Moment(x[None], key, tuple((p, n) for p, n in x.items() if p is not None))
        for key, found in same.items() for x in found
    ]  # fmt: skip


def _covers(large: dict[int | None, int], small: dict[int | None, int]) -> bool:
    return all(large.get(k, 0) >= n for k, n in small.items())
