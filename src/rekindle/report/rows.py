"""Rows of benchmark files: read, checked, and the newest of each kept.

A row says what one method did on one model: see `rekindle bench`. A field that a row does not have is unknown, never zero.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import FormatError

Row = dict[str, Any]
NAMES = ("suite", "model", "method")
NUMBERS = (
    "batch", "image", "peak_mb", "predicted_mb", "plain_mb", "flops_overhead", "seconds_overhead", "overhead", "bound_mb",
    "gap", "least_overhead", "ops", "trace_seconds", "solve_seconds", "published_regular_mb", "published_ogc_mb",
    "measured_regular_mb", "measured_ogc_nonreentrant_mb",
)  # fmt: skip
TEXTS = ("solver", "cost", "target", "note", "plan_status", "commit", "hardware", "date", "command")
SHARED = ("date", "hardware", "command", "commit")  # what a file with one head for all rows says there


def read(paths: Iterable[str | os.PathLike[str]]) -> list[Row]:
    """The rows of files, the newest of each (suite, model, method, cost).

    A file holds one row per line, or is one JSON object with its rows under "rows" and what they share beside it. Of two
    rows with the same key the later date wins; of the same date, or of none, the later in the order read.

    Raises
    ------
    FormatError : a file cannot be read, is damaged, or a field is not what it must be; says which file and row.
    """
    return newest(row for path in paths for row in _read(os.fspath(path)))


def newest(rows: Iterable[Row]) -> list[Row]:
    """One row per (suite, model, method, cost), in the order in which the keys first came."""
    kept: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = (row["suite"], row["model"], row["method"], row.get("cost"))
        if key not in kept or (row.get("date") or "") >= (kept[key].get("date") or ""):
            kept[key] = row
    return list(kept.values())


def _read(path: str) -> list[Row]:
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    except OSError as e:
        raise FormatError(f"cannot read {path}: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise FormatError(f"{path} is no UTF-8 text ({e.reason} at byte {e.start}); nothing of it was used") from e
    if path.endswith(".json"):
        whole = _json(text, path)
        if not isinstance(whole, dict) or not isinstance(whole.get("rows"), list):
            raise FormatError(f'{path} has no list "rows"; it must be a file of benchmark rows')
        shared = {k: whole[k] for k in SHARED if k in whole}
        return [
            _checked(shared | _object(r, f"{path}, row {i}"), f"{path}, row {i}") for i, r in enumerate(whole["rows"])
        ]
    found = []
    for i, line in enumerate(text.splitlines(), 1):
        if line.strip():
            where = f"{path}, line {i}"
            found.append(_checked(_object(_json(line, where), where), where))
    return found


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as e:
        raise FormatError(f"{where} is damaged or is no JSON ({e}); nothing of it was used") from e


def _object(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise FormatError(f"{where} is no row: it must be a JSON object")
    return row


def _checked(row: Row, where: str) -> Row:
    def bad(key: str, must: str) -> FormatError:
        return FormatError(f"{where}: {key!r} is {row.get(key)!r}; it must be {must}")

    for key in NAMES:
        if not isinstance(row.get(key), str) or not row[key]:
            raise bad(key, "a name")
    if row.get("status") not in ("ok", "failed"):
        raise bad("status", '"ok" or "failed"')
    for key in NUMBERS:
        x = row.get(key)
        if x is not None and (isinstance(x, bool) or not isinstance(x, int | float) or not math.isfinite(x)):
            raise bad(key, "a number or null")
    for key in TEXTS:
        if row.get(key) is not None and not isinstance(row[key], str):
            raise bad(key, "a string or null")
    if row.get("versions") is not None and not isinstance(row["versions"], dict):
        raise bad("versions", "an object")
    if row["status"] == "ok" and (row.get("peak_mb") is None or row["peak_mb"] <= 0):
        raise bad("peak_mb", 'a size above 0 where the status is "ok"')
    return row


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
