"""Rows on disk: JSON lines, one row each, written as soon as it is measured."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import FormatError
from .row import Row, key

NAMES = ("suite", "model", "method", "status")


class RowFile:
    """A file that rows are appended to; `rows` are those that it holds, the newest of each key.

    A last line that was cut off while it was written is dropped, and `tell` says so.

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
        """Write the file anew with the newest row of each key alone; whole or not at all."""
        new = self.path.with_name(self.path.name + ".new")
        new.write_text("".join(json.dumps(r) + "\n" for r in self.rows), encoding="utf-8")
        os.replace(new, self.path)


def read_rows(path: Path, tell: Callable[[str], None] = lambda _: None) -> list[Row]:
    """The rows of a file, the newest of each key; a last line that was cut off is passed over, and `tell` says so.

    Raises
    ------
    FormatError : the file cannot be read, or anything else in it is no row.
    """
    rows, whole = _read(path)
    if whole < path.stat().st_size:
        tell(f"{path}: the last line was cut off while it was written; it is passed over")
    return rows


def _read(path: Path) -> tuple[list[Row], int]:
    """The newest row of each key, and the bytes up to where the file is whole."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as e:
        raise FormatError(f"cannot read {path}: {e.strerror or e}") from e
    rows: dict[Any, Row] = {}
    whole = 0
    for i, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = _row(line)
            except ValueError as e:
                if i == len(lines) and not line.endswith(b"\n"):
                    break
                raise FormatError(
                    f"{path}, line {i} is no row of a benchmark: {e}; nothing of the file was used. Mend or remove that line"
                ) from None
            rows.pop(key(row), None)
            rows[key(row)] = row
        whole += len(line)
    return list(rows.values()), whole


def _row(line: bytes) -> Row:
    """
    Raises
    ------
    ValueError : it is none; says why.
    """
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("it is no JSON object")
    for name in NAMES:
        if not isinstance(row.get(name), str):
            raise ValueError(f"its {name!r} is {row.get(name)!r} and must be a text")
    for name, x in row.items():
        if name.endswith(("_mb", "overhead")) and (isinstance(x, bool) or not isinstance(x, int | float | None)):
            raise ValueError(f"its {name!r} is {x!r} and must be a number or null")
    return row
