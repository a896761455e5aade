"""Compares two sets of rows: changes, and which of them are regressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from .row import Key, Row, key

OVERHEADS = ("flops_overhead", "seconds_overhead", "overhead")
FROM_BEST: dict[str, tuple[Any, ...]] = {  # values of a field, best first
    "status": ("ok", "failed"), "plan_status": ("optimal", "feasible"), "parity": (True, False),
}  # fmt: skip


@dataclass(frozen=True)
class RegressionSettings:
    """How large a change counts. Both figures are choices of this project.

    worse_share : a peak that grew by more than this share, or an overhead by more than this fraction, is a regression.
    shown_share : smaller changes of either are not listed.
    """

    worse_share: float = 0.01
    shown_share: float = 1e-4


SETTINGS = RegressionSettings()


@dataclass(frozen=True)
class Change:
    """A change of one field of one row; for a row that is gone, the field is "row". worse : it is a regression."""

    key: Key
    field: str
    old: Any
    new: Any
    worse: bool

    def to_json(self) -> dict[str, Any]:
        suite, model, method, cost, target = self.key
        return {
            "suite": suite, "model": model, "method": method, "cost": cost, "target": target, "field": self.field,
            "old": self.old, "new": self.new, "regression": self.worse,
        }  # fmt: skip


def regressions(old: Sequence[Row], new: Sequence[Row], subset: bool = False) -> list[Change]:
    """The changes from old to new, regressions first.

    A regression is one of: a peak more than 1 % higher; an overhead more than one percentage point higher; a worse status, plan
    status or parity; a successful row of `new` without a peak, overhead, plan status or parity that `old` has; a row that `old`
    has and `new` does not. Rows that only `new` has are ignored. Of a failed row only the status is compared.

    subset : `new` was measured for a part of `old` only; rows missing from it are ignored.

    Raises
    ------
    UsageError : the two have no row in common.
    """
    before, after = ({key(r): r for r in rows} for rows in (old, new))
    if not before.keys() & after.keys():
        raise UsageError("nothing to compare: no row is in both (same suite, model, method, cost and target)")
    found = [c for k, r in after.items() if k in before for c in _changes(before[k], r)]
    if not subset:
        found += [Change(k, "row", r.get("status"), "missing", True) for k, r in before.items() if k not in after]
    return sorted(found, key=lambda c: not c.worse)


def _changes(a: Row, b: Row) -> list[Change]:
    found = []
    for name, order in FROM_BEST.items():
        x, y = a.get(name), b.get(name)
        if x != y and x in order and y in order:
            found.append(Change(key(b), name, x, y, order.index(y) > order.index(x)))
    x, y = a.get("peak_mb"), b.get("peak_mb")
    if x and y and abs(y / x - 1) > SETTINGS.shown_share:
        found.append(Change(key(b), "peak_mb", x, y, y / x - 1 > SETTINGS.worse_share))
    for name in OVERHEADS:
        x, y = a.get(name), b.get(name)
        if x is not None and y is not None and abs(y - x) > SETTINGS.shown_share:
            found.append(Change(key(b), name, x, y, y - x > SETTINGS.worse_share))
    if a.get("status") == b.get("status") == "ok":
        for name in ("peak_mb", *OVERHEADS, *FROM_BEST):
            if a.get(name) is not None and b.get(name) is None:  # a missing figure may be anything
                found.append(Change(key(b), name, a[name], None, True))
    return found
