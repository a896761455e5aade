"""Rows and records of a GPU run, one JSON object per line.

Steps and largest batches become rows of `rekindle bench` (docs/formats.md) of the suites gpu-steps and gpu-largest, with a few
more fields; the package's own check reads them back. Everything else (the device, jobs, tests) is a record: a line without a
suite.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from rekindle.bench.files import checked
from rekindle.bench.row import MB, key, provenance

Row = dict[str, Any]
MEASURED = ("steps", "largest")  # parts of a run whose measurements are rows of `rekindle bench`
RENAMED = {  # field of a measurement in bytes -> field of a row in MB
    "peak_bytes": "peak_mb", "predicted_peak_bytes": "predicted_mb", "reserved_bytes": "reserved_mb",
    "plain_bytes": "plain_mb", "cap_bytes": "cap_mb", "free_bytes": "free_mb",
}  # fmt: skip
AS_IN_BENCH = {
    "ratio": "wall_ratio",
    "predicted_overhead": "overhead",
}  # the same quantity under the name that rows have


def bench_row(found: Row) -> Row:
    """A measurement of a part of the run as a row of `rekindle bench`; records stay as they are.

    `outcome` keeps what "ok" and "failed" cannot tell apart: "left out", "infeasible" (no plan fits), "does not apply" (the
    device is too small, the model has no blocks) and "planned" (not yet run).
    """
    if found.get("part") not in MEASURED or "method" not in found:
        return _finite(found)
    row = {RENAMED.get(k, AS_IN_BENCH.get(k, k)): v for k, v in found.items()}
    row |= {new: None if row[new] is None else row[new] / MB for new in RENAMED.values() if new in row}
    row |= {"suite": f"gpu-{row.pop('part')}", "cost": "seconds", "outcome": found["status"]}
    if "cap" in row:  # each cap is a case of its own
        row["case"], row["model"] = row["model"], f"{row['model']} under {row['cap']}"
    row["status"] = "ok" if found["status"] == "ok" else "failed"
    if found["status"] == "does not apply":
        row["note"] = f"does not apply: {row['note']}"
    return _finite(provenance() | row)


def appended(path: Path, row: Row) -> None:
    """Add a row or record to a file at once, so that it survives whatever comes after."""
    with path.open("a", encoding="utf-8") as f:
        f.write(json.dumps(bench_row(row), allow_nan=False) + "\n")
        f.flush()
        os.fsync(f.fileno())


def read(path: Path) -> list[Row]:
    """The rows and records of a file; the last line may be torn. Empty if there is no file.

    Raises
    ------
    ValueError : a row is not a row of `rekindle bench`.
    """
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            break
        rows.append(checked(row) if "suite" in row else row)
    return rows


def newest(rows: list[Row]) -> list[Row]:
    """The last of the rows of one key, and of the records of one part and name, in the order of the first ones."""
    kept: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        kept[key(row) if "suite" in row else (row.get("part"), row.get("name"))] = row
    return list(kept.values())


def outcome(row: Row) -> str:
    """How a row or record ended: "ok", "failed", "left out", "infeasible", "does not apply", "planned" or "skipped"."""
    return str(row.get("outcome") or row["status"])


def left_out(rows: list[Row]) -> list[Row]:
    """The records of jobs that were not started because too little time was left."""
    return [r for r in rows if outcome(r) == "left out"]


def failed(rows: list[Row]) -> bool:
    """Whether anything failed. A budget that no plan can meet is no failure, nor a case that the device cannot hold."""
    return any(outcome(r) == "failed" for r in rows)


def _finite(x: Any) -> Any:
    """The same data with None in place of figures that are not finite, which JSON lacks."""
    if isinstance(x, dict):
        return {k: _finite(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_finite(v) for v in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
