"""Two sets of rows compared: what changed, and what got worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from .row import Key, Row, key

WORSE = 0.01  # of a peak, as a share; of an overhead, in points of a hundred
SEEN = 1e-4  # smaller changes are not worth a line
OVERHEADS = ("flops_overhead", "seconds_overhead", "overhead")
ORDERS: dict[str, tuple[Any, ...]] = {  # each from good to bad
    "status": ("ok", "failed"), "plan_status": ("optimal", "feasible"), "parity": (True, False),
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One field of one row; a row that is gone has the field "row". worse : it is a regression."""

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
    """What changed, regressions first.

    A regression is a peak more than 1 % higher, an overhead more than one point higher, a status, plan status or parity that
    got worse, one of these figures that a row which still runs no longer has, and a row that `new` no longer has. A row that
    only `new` has is no change; a figure that a status explains (it failed) is not told again.

    subset : new was measured for a part of old only; the rows that it does not have are passed over.

    Raises
    ------
    UsageError : no row is in both.
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
    for name, order in ORDERS.items():
        x, y = a.get(name), b.get(name)
        if x != y and x in order and y in order:
            found.append(Change(key(b), name, x, y, order.index(y) > order.index(x)))
    x, y = a.get("peak_mb"), b.get("peak_mb")
    if x and y and abs(y / x - 1) > SEEN:
        found.append(Change(key(b), "peak_mb", x, y, y / x - 1 > WORSE))
    for name in OVERHEADS:
        x, y = a.get(name), b.get(name)
        if x is not None and y is not None and abs(y - x) > SEEN:
            found.append(Change(key(b), name, x, y, y - x > WORSE))
    if a.get("status") == b.get("status") == "ok":
        for name in ("peak_mb", *OVERHEADS, *ORDERS):
            if a.get(name) is not None and b.get(name) is None:  # what is not told may be anything
                found.append(Change(key(b), name, a[name], None, True))
    return found
