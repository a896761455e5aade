"""Rows side by side: one line per model, one column per method."""

from __future__ import annotations

from collections.abc import Sequence

from .row import Row
from .suites import PUBLISHED


def compare(rows: Sequence[Row]) -> list[list[str]]:
    """Rows as a table, its header first: one line per model, its published figures and then each method's measured peak
    in MB, with the extra FLOPs behind it."""
    methods = list(dict.fromkeys(r["method"] for r in rows))
    published = [k for k in PUBLISHED if any(r[k] is not None for r in rows)]
    table = [["model", "batch", *(k.removesuffix("_mb").replace("_", " ") for k in published), *methods]]
    for model in dict.fromkeys(r["model"] for r in rows):
        mine = {r["method"]: r for r in rows if r["model"] == model}
        r = next(iter(mine.values()))
        figures = ["-" if r[k] is None else f"{r[k]:,.0f}" for k in published]
        table.append([model, str(r["batch"]), *figures, *(_cell(mine.get(m)) for m in methods)])
    return table


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    if row["status"] != "ok":
        return "failed"
    extra = f" ({row['flops_overhead']:+.1%})" if row["flops_overhead"] else ""
    return f"{row['peak_mb']:,.0f}{extra}"
