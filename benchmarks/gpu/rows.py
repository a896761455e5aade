"""Rows of results: one JSON object per line, appended whole, so that what was measured survives whatever comes after."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def appended(path: Path, row: Row) -> None:
    """Add a row to a file."""
    with path.open("a", encoding="utf-8") as f:
        f.write(json.dumps(_finite(row), allow_nan=False) + "\n")
        f.flush()
        os.fsync(f.fileno())


def read(path: Path) -> list[Row]:
    """The rows of a file, of which the last line may be torn; none where there is no file."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def newest(rows: list[Row]) -> list[Row]:
    """The last row of each (part, model, method, cap, name), in the order in which the keys first came."""
    kept: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        kept[tuple(row.get(k) for k in ("part", "model", "method", "cap", "name"))] = row
    return list(kept.values())


def left_out(rows: list[Row]) -> list[Row]:
    """The rows of jobs that were not begun, as too little time was left."""
    return [r for r in rows if r["status"] == "left out"]


def _finite(x: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(x, dict):
        return {k: _finite(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_finite(v) for v in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
