"""Divides one goal of a step among its parts: for each part one of its ways, such that the whole step keeps the goal.

Problem. A step passes through moments. At each moment some bytes are held outside of the parts, some parts hold what their
forward saved, and at most a few run. Choose one way for each part, such that no moment takes more than the budget and the extra
cost is least; or such that the extra cost stays within a limit and the largest moment is least.

This is a multiple-choice knapsack problem with one constraint for each moment. HiGHS solves it as a mixed-integer program with
a certified bound. It generalises the dynamic program for chains of Herrmann et al. (rotor): moments may be in any order, and one
part may be called several times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .figures import Figures


@dataclass(frozen=True)
class DivisionSettings:
    """When the search ends.

    time_limit_s : of one mixed-integer program; a guess. gap : part by which its answer may miss the best one; a guess.
    tolerance : part of the budget that is left free, since HiGHS allows constraints to be missed by 1e-6 of it.
    """

    time_limit_s: float = 2.0
    gap: float = 3e-3
    tolerance: float = 4e-6


SETTINGS = DivisionSettings()
PHASES = ("held", "forward", "backward")


@dataclass(frozen=True)
class Moment:
    """A time of the step.

    outside_bytes : held outside of the parts. parts : (part, one of PHASES), for each call of a part that holds bytes now.
    """

    outside_bytes: int
    parts: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Division:
    """The ways chosen.

    chosen : one index of a way for each part.
    peak_bytes : the largest moment. extra : cost of all parts beside their plain cost.
    bound : certified: no choice among these ways costs less (of a budget), or takes fewer bytes (of other goals), with these
        moments.
    """

    chosen: tuple[int, ...]
    peak_bytes: int
    extra: float
    bound: float


def peak_of(parts: Sequence[Sequence[Figures]], moments: Sequence[Moment], chosen: Sequence[int]) -> int:
    """The bytes of the largest moment with these ways."""
    return max((m.outside_bytes + sum(_bytes(parts[p][chosen[p]], k) for p, k in m.parts) for m in moments), default=0)


def extra_of(parts: Sequence[Sequence[Figures]], calls: Sequence[int], chosen: Sequence[int]) -> float:
    """The extra cost of all calls with these ways."""
    return float(sum(n * ways[c].extra for ways, c, n in zip(parts, chosen, calls, strict=True)))


def divide(
    parts: Sequence[Sequence[Figures]],
    calls: Sequence[int],
    moments: Sequence[Moment],
    *,
    budget: int | None = None,
    most_extra: float | None = None,
) -> Division | None:
    """The best choice of one way for each part; None: no choice keeps the budget.

    Parameters
    ----------
    parts : the ways of each part. calls : how often each part is called in the step.
    budget : bytes that no moment may exceed; the extra cost is then least.
    most_extra : without a budget: the extra cost that the largest moment is made least within; None: at any cost.
    """
    problem = _Program(parts, calls, moments)
    if budget is not None:
        return problem.cheapest(budget)
    small = problem.smallest(most_extra)
    if small is None:
        return None
    cheaper = problem.cheapest(small.peak_bytes)
    if cheaper is None or cheaper.extra >= small.extra:
        return small
    return Division(cheaper.chosen, cheaper.peak_bytes, cheaper.extra, small.bound)


def _bytes(f: Figures, phase: str) -> int:
    return f.bytes[PHASES.index(phase)]


class _Program:
    """The mixed-integer program: a variable for each way of each part, and the peak."""

    def __init__(self, parts: Sequence[Sequence[Figures]], calls: Sequence[int], moments: Sequence[Moment]):
        self.parts, self.calls, self.moments = parts, calls, _largest(moments)
        self.first = np.cumsum([0, *map(len, parts)])
        self.count = int(self.first[-1])
        self.costs = np.array([n * f.extra for ways, n in zip(parts, calls, strict=True) for f in ways])
        self.rows = np.zeros((len(self.moments), self.count))
        for i, m in enumerate(self.moments):
            for p, phase in m.parts:
                self.rows[i, self.first[p] : self.first[p + 1]] += [_bytes(f, phase) for f in parts[p]]
        self.outside = np.array([m.outside_bytes for m in self.moments], float)

    def cheapest(self, budget: int) -> Division | None:
        """The cheapest choice within the budget; None: there is none."""
        room = budget - self.outside
        if (room < 0).any():
            return None
        if self._fits([0] * len(self.parts), budget):  # the first way of every part is the cheapest
            return self._division([0] * len(self.parts), 0.0)
        unit = float(self.costs.max()) or 1.0
        scale = max(1.0, float(budget))
        for tolerance in (SETTINGS.tolerance, 100 * SETTINGS.tolerance):
            solved = self._solve(self.costs / unit, self.rows / scale, room / scale - tolerance)
            if solved is None:
                return self._exactly(budget)
            chosen, bound = solved
            if self._fits(chosen, budget):
                return self._division(chosen, bound * unit)
        return self._exactly(budget)

    def smallest(self, most_extra: float | None) -> Division | None:
        """The choice of the least peak within a cost."""
        scale = max(1.0, float((self.rows.max(initial=0) + self.outside.max(initial=0))))
        rows = np.hstack([self.rows / scale, -np.ones((len(self.rows), 1))])
        limits = -self.outside / scale
        if most_extra is not None:
            unit = max(most_extra, float(self.costs.max()) * 1e-9, 1e-30)
            rows = np.vstack([rows, np.append(self.costs / unit, 0.0)])
            limits = np.append(limits, most_extra / unit)
        solved = self._solve(np.append(np.zeros(self.count), 1.0), rows, limits)
        if solved is None:
            return None
        chosen, bound = solved
        if most_extra is not None and extra_of(self.parts, self.calls, chosen) > most_extra * (1 + 1e-6) + 1e-30:
            return None
        return self._division(chosen, bound * scale)

    def _exactly(self, budget: int) -> Division | None:
        """The choice of the least peak, if it keeps a budget so tight that HiGHS misses it by a rounding."""
        least = self.smallest(None)
        return least if least is not None and least.peak_bytes <= budget else None

    def _fits(self, chosen: Sequence[int], budget: int) -> bool:
        return peak_of(self.parts, self.moments, chosen) <= budget

    def _division(self, chosen: Sequence[int], bound: float) -> Division:
        peak, extra = peak_of(self.parts, self.moments, chosen), extra_of(self.parts, self.calls, chosen)
        return Division(tuple(chosen), peak, extra, max(0.0, bound))

    def _solve(self, costs: np.ndarray, rows: np.ndarray, limits: np.ndarray) -> tuple[list[int], float] | None:
        """(the ways chosen, a lower bound on the objective); None: infeasible. A last column is the peak."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_matrix

        width = len(costs)
        one = np.zeros((len(self.parts), width))
        for p in range(len(self.parts)):
            one[p, self.first[p] : self.first[p + 1]] = 1.0
        whole = np.zeros(width)
        whole[: self.count] = 1
        top = np.ones(width)
        top[self.count :] = np.inf
        constraints = [LinearConstraint(csr_matrix(one), 1.0, 1.0)]
        if len(rows):
            constraints.append(LinearConstraint(csr_matrix(rows), -np.inf, limits))
        found = milp(
            costs, integrality=whole, bounds=Bounds(np.zeros(width), top), constraints=constraints,
            options={"time_limit": SETTINGS.time_limit_s, "mip_rel_gap": SETTINGS.gap},
        )  # fmt: skip
        if found.x is None:
            return None
        chosen = [int(found.x[a:b].argmax()) for a, b in zip(self.first[:-1], self.first[1:], strict=True)]
        bound = found.mip_dual_bound
        return chosen, float(bound) if bound is not None and np.isfinite(bound) else 0.0


def _largest(moments: Sequence[Moment]) -> list[Moment]:
    """One moment for each set of parts: the one in which most is held outside."""
    found: dict[tuple[tuple[int, str], ...], int] = {}
    for m in moments:
        key = tuple(sorted(m.parts))
        found[key] = max(found.get(key, 0), m.outside_bytes)
    return [Moment(outside, parts) for parts, outside in found.items()]
