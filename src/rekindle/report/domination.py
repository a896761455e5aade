"""Is `auto` anywhere beaten? The check behind "never dominated by more than 1 %"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .rows import Row, allowed, by_model, extra, limit_mb, planned_in, solver_of

MEASURES = ("flops", "seconds")
TOLERANCE = 0.01


@dataclass(frozen=True)
class Standing:
    """How `auto` stands against one row of another method, by one measure of cost.

    cost : what the other row was planned in; None: nothing was planned, or it is not known.
    peak_mb, overhead : of the other row; overhead as a fraction of the plain step's cost.
    nearest : method of the auto row that comes closest, with its peak and overhead; None: there is none to compare with.
    loss : the least x such that this auto row's peak and its cost are both at most 1 + x times the other's. At or below 0:
        as small and as cheap, or better.
    asked : where loss is above the tolerance: whether an auto row answered a question to which the other row is the better
        answer (least memory within a cost that it keeps, least cost within a memory that it keeps, or least memory). If
        not, the other row lies between two auto rows and auto was not asked there.
    """

    suite: str
    model: str
    method: str
    cost: str | None
    measure: str
    peak_mb: float
    overhead: float
    nearest: str | None
    nearest_peak_mb: float | None
    nearest_overhead: float | None
    loss: float
    asked: bool


def standings(rows: Iterable[Row], tolerance: float = TOLERANCE) -> list[Standing]:
    """One standing per row of another method that ran, and per measure in which its cost is known."""
    found = []
    for mine in by_model(rows).values():
        for measure in MEASURES:
            if all(r["method"] == "plain" or extra(r, measure) is None for r in mine):
                continue
            seen = set()
            for other in mine:
                overhead = extra(other, measure)
                same = (other["method"], planned_in(other), other["peak_mb"])  # what is not planned is so for any cost
                if solver_of(other) == "auto" or other["status"] != "ok" or overhead is None or same in seen:
                    continue
                seen.add(same)
                found.append(_standing(other, overhead, mine, measure, tolerance))
    return found


def dominated(rows: Iterable[Row], tolerance: float = TOLERANCE) -> list[Standing]:
    """Where no auto row is both as small and as cheap, within the tolerance; empty if auto is never dominated by more.

    rows : one per (suite, model, method, cost); see `rows.newest`.
    tolerance : on the peak and on the step's whole cost (plain step and what is extra), as a fraction.
    """
    return [s for s in standings(rows, tolerance) if s.loss > tolerance]


def _standing(other: Row, overhead: float, mine: Sequence[Row], measure: str, tolerance: float) -> Standing:
    auto = [r for r in mine if solver_of(r) == "auto"]
    ran = [(r, e) for r in auto if r["status"] == "ok" and (e := extra(r, measure)) is not None]

    def ratio(r: Row, e: float) -> float:
        return max(r["peak_mb"] / other["peak_mb"], (1 + e) / (1 + overhead))

    near, cost = min(ran, key=lambda x: ratio(*x), default=(None, None))
    least = float("inf") if near is None or cost is None else round(ratio(near, cost) - 1, 12)
    asked = least > tolerance and any(
        _beats(other, overhead, r, limit_mb(r, mine), measure, tolerance)
        for r in auto
        if (r.get("cost") or "flops") == measure
    )
    name, size = (None, None) if near is None else (near["method"], near["peak_mb"])
    return Standing(
        other["suite"], other["model"], other["method"], planned_in(other), measure, other["peak_mb"], overhead,
        name, size, cost, least, asked,
    )  # fmt: skip


def _beats(other: Row, overhead: float, auto: Row, limit: float | None, measure: str, tolerance: float) -> bool:
    """Whether the other row keeps what auto's row was asked to keep, and is better in the rest by more than that.

    limit : the memory that auto was given, MB.
    """
    most = allowed(auto)
    if "=" in auto["method"]:
        if limit is None or other["peak_mb"] > limit:
            return False
        mine = extra(auto, measure)
        return auto["status"] != "ok" or (mine is not None and 1 + mine > (1 + overhead) * (1 + tolerance))
    if most is not None and overhead > most:
        return False
    return auto["status"] != "ok" or auto["peak_mb"] > other["peak_mb"] * (1 + tolerance)
