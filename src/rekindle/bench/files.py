"""Rows on disk: JSON lines, one row each, written as soon as it is measured."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import FormatError
from ..model.files import write_text
from .row import Row, key

NAMES = ("suite", "model", "method")
NUMBERS = (
    "batch", "image", "ops", "nodes", "peak_mb", "predicted_mb", "plain_mb", "flops_overhead", "seconds_overhead",
    "wall_ratio", "overhead", "nodes_overhead", "bound_mb", "gap", "least_overhead", "trace_seconds", "solve_seconds",
    "rewrites", "slices",
    "published_regular_mb", "published_ogc_mb", "measured_regular_mb", "measured_ogc_nonreentrant_mb",
)  # fmt: skip
TEXTS = ("solver", "cost", "target", "note", "plan_status", "commit", "hardware", "date", "command")


class RowFile:
    """A file to which rows are appended. rows : its rows, the newest of each key.

    Drops a last line that was cut off while it was written, and says so through `tell`.

    Raises
    ------
    FormatError : the file cannot be read, or anything else in it is no row; the file is left as it is.
    """

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        self.path = path
        self.rows: list[Row] = []
        if not path.exists():
            return
        self.rows, whole = _read(path)
        if whole < path.stat().st_size:
            tell(f"{path}: the last line was cut off while it was written; it is dropped and measured again")
            os.truncate(path, whole)
        text = path.read_bytes()
        if text and not text.endswith(b"\n"):
            with path.open("ab") as f:
                f.write(b"\n")

    def append(self, row: Row) -> None:
        with self.path.open("a", encoding="utf-8") as f:
            f.write(json.dumps(row) + "\n")
        self.rows = [r for r in self.rows if key(r) != key(row)] + [row]

    def tidy(self) -> None:
        """Rewrite the file with only the newest row of each key, atomically."""
        write_text(self.path, "".join(json.dumps(r) + "\n" for r in self.rows))


def read_rows(path: Path, tell: Callable[[str], None] = lambda _: None) -> list[Row]:
    """The rows of a file, the newest of each key. Skips a last line that was cut off, and says so through `tell`.

    Raises
    ------
    FormatError : the file cannot be read, or anything else in it is no row.
    """
    rows, whole = _read(path)
    if whole < path.stat().st_size:
        tell(f"{path}: the last line was cut off while it was written; it is skipped")
    return rows


def _read(path: Path) -> tuple[list[Row], int]:
    """The newest row of each key, and the length in bytes of the file up to a cut-off last line."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as e:
        raise FormatError(f"cannot read {path}: {e.strerror or e}") from None
    rows: dict[Any, Row] = {}
    whole = 0
    for i, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = checked(json.loads(line))
            except ValueError as e:
                if i == len(lines) and _cut_off(line, e):
                    break
                raise FormatError(
                    f"{path}, line {i} is no row of a benchmark: {e}; nothing of the file was used. Mend or remove that line"
                ) from None
            rows.pop(key(row), None)
            rows[key(row)] = row
        whole += len(line)
    return list(rows.values()), whole


def _cut_off(line: bytes, why: ValueError) -> bool:
    """Whether the line is the beginning of a row. A whole line, or one that never was a row, must not be dropped."""
    unreadable = isinstance(why, json.JSONDecodeError | UnicodeDecodeError)
    return unreadable and line.startswith(b"{") and not line.endswith(b"\n")


def checked(row: Any) -> Row:
    """The same row, after checking its fields.

    Raises
    ------
    ValueError : it is not a row; the message says why.
    """
    if not isinstance(row, dict):
        raise ValueError("it is no JSON object")
    for name in NAMES:
        if not isinstance(row.get(name), str) or not row[name]:
            raise _bad(row, name, "a name")
    if row.get("status") not in ("ok", "failed"):
        raise _bad(row, "status", '"ok" or "failed"')
    for name, x in row.items():
        number = isinstance(x, int | float) and not isinstance(x, bool)
        if number and not abs(x) <= sys.float_info.max:  # nan is not, either
            raise _bad(row, name, "finite")
        if name in NUMBERS and x is not None and not number:
            raise _bad(row, name, "a number or null")
        if name in TEXTS and x is not None and not isinstance(x, str):
            raise _bad(row, name, "a text or null")
    if not isinstance(row.get("parity"), bool | None):
        raise _bad(row, "parity", "true, false or null")
    sums = row.get("sums")
    if not isinstance(sums, list | None) or not all(isinstance(name, str) for name in sums or ()):
        raise _bad(row, "sums", "a list of names or null")
    if not isinstance(row.get("versions"), dict | None):
        raise _bad(row, "versions", "an object or null")
    if row["status"] == "ok" and (row.get("peak_mb") is None or row["peak_mb"] <= 0):
        raise _bad(row, "peak_mb", 'a size above 0 where the status is "ok"')
    return row


def _bad(row: Row, name: str, must: str) -> ValueError:
    return ValueError(f"its {name!r} is {row.get(name)!r} and must be {must}")
