"""Rows of benchmark files: read, checked, and the newest of each kept.

A row says what one method did on one model: see `rekindle bench`. A field that a row does not have is unknown, never zero.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ..bench.files import checked, read_rows
from ..bench.row import Key, Row, key
from ..errors import FormatError

SHARED = ("date", "hardware", "command", "commit")  # what a file with one head for all rows says there


def read(paths: Iterable[str | os.PathLike[str]], tell: Callable[[str], None] = lambda _: None) -> list[Row]:
    """The rows of files, the newest of each key (suite, model, method, cost, target).

    A file holds one row per line, or (*.json) is one JSON object with its rows under "rows" and what they share beside it.
    Of two lines with the same key the later one counts. Of rows from several files, or from one JSON object, the later
    date wins; of the same date, or of none, the later in the order read. A last line that was cut off while it was written
    is passed over, and `tell` says so.

    Raises
    ------
    FormatError : a file cannot be read, is damaged, or a field is not what it must be; says which file and row.
    """
    return newest(row for path in paths for row in _read(Path(path), tell))


def newest(rows: Iterable[Row]) -> list[Row]:
    """One row per key, in the order in which the keys first came."""
    kept: dict[Key, Row] = {}
    for row in rows:
        k = key(row)
        if k not in kept or (row.get("date") or "") >= (kept[k].get("date") or ""):
            kept[k] = row
    return list(kept.values())


def _read(path: Path, tell: Callable[[str], None]) -> list[Row]:
    if path.suffix != ".json":
        return read_rows(path, tell)
    try:
        whole = json.loads(path.read_bytes())
    except OSError as e:
        raise FormatError(f"cannot read {path}: {e.strerror or e}") from e
    except ValueError as e:
        raise FormatError(f"{path} is damaged or is no JSON ({e}); nothing of it was used") from e
    if not isinstance(whole, dict) or not isinstance(whole.get("rows"), list):
        raise FormatError(f'{path} has no list "rows"; it must be a file of benchmark rows')
    shared = {k: whole[k] for k in SHARED if k in whole}
    found = []
    for i, row in enumerate(whole["rows"]):
        try:
            found.append(checked(shared | row if isinstance(row, dict) else row))
        except ValueError as e:
            raise FormatError(f"{path}, row {i} is no row of a benchmark: {e}; nothing of the file was used") from None
    return found


# -- what rows say -----------------------------------------------------------------------------------------------------
def by_model(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """(suite, model) -> its rows, in the order given."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["suite"], row["model"]), []).append(row)
    return found


def solver_of(row: Row) -> str:
    """The method without its goal: "auto@8%" -> "auto"."""
    return re.split(r"[@=]", row["method"])[0]


def known(rows: Sequence[Row], key: str) -> float | None:
    """The first figure that a row has under that key."""
    return next((r[key] for r in rows if r.get(key) is not None), None)


def peak(row: Row | None) -> float | None:
    """The executed peak in MB; None: no row, or it failed."""
    return None if row is None or row["status"] != "ok" else row["peak_mb"]


def extra(row: Row, measure: str) -> float | None:
    """Extra cost of the executed step over the plain one, as a fraction; None: unknown.

    measure : "flops" (measured), "seconds" (modelled), or "unit" (only rows planned in unit costs have it).
    """
    if row["method"] == "plain":
        return 0.0
    if measure == "unit":
        return row.get("overhead") if row.get("cost") == "unit" else None
    return row.get(f"{measure}_overhead")


def pick(rows: Sequence[Row], method: str, cost: str) -> Row | None:
    """The method's row planned in that cost; else one that ran planned in another; else one that failed."""
    found = [r for r in rows if r["method"] == method]
    order = {None: 1, "flops": 2, "seconds": 3} | {cost: 0}
    return min(found, key=lambda r: (r["status"] != "ok", order.get(r.get("cost"), 4)), default=None)


def plain_mb(rows: Sequence[Row]) -> float | None:
    """The plain step's activation peak; MB."""
    known = [r["peak_mb"] for r in rows if r["method"] == "plain" and r["status"] == "ok"]
    return next(iter(known + [r["plain_mb"] for r in rows if r.get("plain_mb")]), None)


def planned_in(row: Row) -> str | None:
    """The cost that the row's plan was made for; None: nothing was planned, or it is not known."""
    return row.get("cost") if row.get("solver") else None


def limit_mb(row: Row, others: Sequence[Row] = ()) -> float | None:
    """The memory that the method was given: "auto=0.5", half the plain peak; "auto=ogc", what the published solver needs;
    "auto=feng", what that method takes.

    others : rows of the same model.
    None: the method was given no memory, or it is not known.
    """
    _, equals, goal = row["method"].partition("=")
    if not equals:
        return None
    if goal == "ogc":
        return row.get("measured_ogc_nonreentrant_mb")
    try:
        return float(goal) * row["plain_mb"] if row.get("plain_mb") else None
    except ValueError:
        return peak(pick(others, goal, row.get("cost") or "flops"))


def allowed(row: Row) -> float | None:
    """The extra cost that the method was given, as a fraction: "auto@8%" -> 0.08; None: another goal."""
    found = re.fullmatch(r".+@(\d+(?:\.\d+)?)%", row["method"])
    return float(found[1]) / 100 if found else None
