"""Compares two files of rows of `rekindle bench`: changes, and which of them are regressions.

python benchmarks/compare_rows.py old.jsonl new.jsonl            # exit code 1 on a regression
python benchmarks/compare_rows.py old.jsonl new.jsonl --subset   # new covers a part of old only
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from rekindle.bench.files import read_rows
from rekindle.bench.row import Key, Row, key
from rekindle.cli.answer import out_console
from rekindle.errors import RekindleError, UsageError
from rekindle.printed import printable
from rekindle.show.text import figure

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


def main(args: Sequence[str] | None = None) -> int:
    """Compare two files. Returns the exit code: 1 on a regression or an unreadable file, 2 where nothing compares, else 0."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("old", type=Path)
    p.add_argument("new", type=Path)
    p.add_argument("--subset", action="store_true", help="rows that only OLD has are no regressions")
    p.add_argument("--json", action="store_true", help="print one JSON document")
    given = p.parse_args(args)
    try:
        document = compared(given.old, given.new, given.subset)
    except RekindleError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2 if isinstance(e, UsageError) else 1
    if given.json:
        print(json.dumps(document, allow_nan=False))
    else:
        console, changes = out_console(), document["changes"]
        if changes:
            console.print(changes_table(changes))
        console.print(
            f"{document['compared']} rows compared ({document['only_old']} only in {given.old}, {document['only_new']} only "
            f"in {given.new}): {len(changes)} changes, {document['regressions']} of them regressions",
            soft_wrap=True,
        )
    return 1 if document["regressions"] else 0


def compared(old: Path, new: Path, subset: bool) -> dict[str, Any]:
    """The comparison of two files as one document.

    Raises
    ------
    FormatError : a file cannot be read or is no file of rows.
    UsageError : the two have no row in common.
    """
    rows = [read_rows(path, lambda line: print(line, file=sys.stderr)) for path in (old, new)]
    before, after = ({key(r) for r in side} for side in rows)
    changes = regressions(rows[0], rows[1], subset)
    return {
        "compared": len(before & after), "only_old": len(before - after), "only_new": len(after - before),
        "regressions": sum(c.worse for c in changes), "changes": [c.to_json() for c in changes],
    }  # fmt: skip


def changes_table(changes: Sequence[dict[str, Any]]) -> Table:
    """The changes between two sets of rows; each entry is a `Change.to_json()`."""
    table = Table(title="changes", title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column, side in (
        ("model, method", "left"),
        ("field", "left"),
        ("old", "right"),
        ("new", "right"),
        ("", "left"),
    ):
        table.add_column(column, justify=side, overflow="fold")  # type: ignore[arg-type]
    for c in changes:
        values = (figure(c["field"], c[k]) for k in ("old", "new"))
        cost = f", {c['cost']}" if c["cost"] else ""
        table.add_row(
            printable(f"{c['suite']}: {c['model']}, {c['method']}{cost}"), c["field"], *values,
            Text("REGRESSION", "bold red") if c["regression"] else "",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    sys.exit(main())
