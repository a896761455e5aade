"""Seconds to trace and to solve, against the size of the graph."""

from __future__ import annotations

from collections.abc import Sequence

from . import markdown as md
from .loglog import loglog_chart
from .rows import Row, by_model, known, solver_of


def times_part(rows: Sequence[Row], folder: str, pictures: dict[str, str]) -> str:
    """The page's part on solve times; adds its picture where the sizes of graphs are known. Empty without solve times."""
    lines = [["model", "ops", "trace s", "auto, longest s", "auto, mean s", "slowest other solver", "s"]]
    trace: list[tuple[float, float]] = []
    auto: list[tuple[float, float]] = []
    other: list[tuple[float, float]] = []
    for (_, model), mine in by_model(rows).items():
        solved = [r for r in mine if r.get("solve_seconds") is not None]
        if not solved:
            continue
        ours = [r["solve_seconds"] for r in solved if solver_of(r) == "auto"]
        others = [r for r in solved if solver_of(r) != "auto"]
        slow = max(others, key=lambda r: r["solve_seconds"], default=None)
        ops, traced = known(mine, "ops"), known(mine, "trace_seconds")
        lines.append([
            model, md.whole(ops), md.seconds(traced), md.seconds(max(ours, default=None)), md.seconds(md.mean(ours)),
            "-" if slow is None else slow["method"], md.seconds(None if slow is None else slow["solve_seconds"]),
        ])  # fmt: skip
        trace += [(ops, traced)] if ops and traced else []
        for r in solved:
            if r.get("ops") and r["solve_seconds"] > 0:
                (auto if solver_of(r) == "auto" else other).append((r["ops"], r["solve_seconds"]))
    if len(lines) == 1:
        return ""
    text = [
        "## Solve times", "",
        "Wall seconds on the machine above. A row of `auto` that finds its model's curve already searched only reads it off: "
        "the longest is what a first plan takes.", "",
    ]  # fmt: skip
    series = {name: points for name, points in (("trace", trace), ("other solvers", other), ("auto", auto)) if points}
    if series:
        pictures["times.svg"] = loglog_chart(
            "Seconds to trace and to solve", "Each dot is one model, or one row of it.", "ops of the graph", "seconds", series,
            joined=False,
        )  # fmt: skip
        text += [f"![Seconds to trace and to solve against the size of the graph]({folder}/times.svg)", ""]
    return "\n".join([*text, md.table(lines, texts=(5,))])
