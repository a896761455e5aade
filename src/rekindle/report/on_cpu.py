"""Small models on real tensors: what the allocator saw, what the clock said, and whether the bits are the plain step's."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from . import markdown as md
from .rows import Row, by_model, plain_mb

SUITE = "cpu"
SHOWN = ("checkpoint-blocks", "auto@8%", "auto=0.5", "auto=0.3")


def cpu_part(rows: Sequence[Row]) -> str:
    """The page's part on the suite cpu; empty where there are no rows of it."""
    groups = {m: g for (s, m), g in by_model(rows).items() if s == SUITE}
    if not groups:
        return ""
    lines = [["model", *SHOWN, "parity"]]
    ratios: dict[str, list[float]] = {m: [] for m in SHOWN}
    for model, mine in groups.items():
        by_method = {r["method"]: r for r in mine if r["status"] == "ok"}
        cells = []
        for method in SHOWN:
            row = by_method.get(method)
            if row is None or row.get("wall_ratio") is None:
                cells.append("-")
                continue
            ratios[method].append(row["wall_ratio"])
            cells.append(f"{md.share(row['peak_mb'], plain_mb(mine))}, {row['wall_ratio']:.2f} x")
        told = [r["parity"] for r in mine if r.get("parity") is not None]
        lines.append([model, *cells, f"{sum(told)} of {len(told)}"])
    middle = [f"{statistics.median(x):.2f} x" if x else "-" for x in ratios.values()]
    lines.append(["median", *middle, ""])
    return "\n".join([
        "## Small models on a CPU", "",
        "The suite cpu: small copies of the models on real tensors. Peaks are the allocator's, as a share of the plain step's "
        "activations; times are wall times of a step over the plain step's, both timed in turns, the median of five rounds. "
        "On steps this small what Python does for each op weighs most. Parity: planned rows whose loss, gradients, buffers "
        "and random state are the plain step's bit for bit.", "", md.table(lines),
    ])  # fmt: skip
