"""Two sets of rows compared: what changed, and what got worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .row import Key, Row, key

WORSE = 0.01  # of a peak, as a share; of an overhead, in points of a hundred
SEEN = 1e-4  # smaller changes are not worth a line
OVERHEADS = ("flops_overhead", "seconds_overhead", "overhead")
ORDERS = {"status": ("ok", "failed"), "plan_status": ("optimal", "feasible")}  # each from good to bad


@dataclass(frozen=True)
class Change:
    """One field of one row. worse : it is a regression."""

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


def regressions(old: Sequence[Row], new: Sequence[Row]) -> list[Change]:
    """What changed in rows that both have, regressions first.

    A regression is a peak more than 1 % higher, an overhead more than one point higher, or a status that got worse. A
    row that only one side has is no change; a figure that a status explains (it failed) is not told again.
    """
    before = {key(r): r for r in old}
    found = [c for r in new if key(r) in before for c in _changes(before[key(r)], r)]
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
    return found
