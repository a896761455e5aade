"""The page's part on seconds to trace and to solve, against the size of the graph."""

from __future__ import annotations

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from page import text
from page.rows import MODEL
from page.style import BLUE, GREY, ORANGE, RC, log_axes, svg, titled


def times_part(t: pd.DataFrame, folder: str, pictures: dict[str, str]) -> str:
    """The page's part on solve times; adds its picture if sizes of graphs are known. Empty without solve times."""
    lines = []
    for (_, model), mine in t.groupby(MODEL, sort=False):
        solved = mine[mine["solve_seconds"].notna()]
        if solved.empty:
            continue
        auto = solved.loc[solved["solver_name"] == "auto", "solve_seconds"]
        others = solved.loc[solved["solver_name"] != "auto", ["method", "solve_seconds"]]
        slow = None if others.empty else others.loc[others["solve_seconds"].idxmax()]
        known = mine[["ops", "trace_seconds"]].bfill().iloc[0]
        lines.append({
            "model": str(model), "ops": text.whole(known["ops"]), "trace s": text.ratio(known["trace_seconds"]),
            "auto, longest s": text.ratio(auto.max()), "auto, mean s": text.ratio(text.mean(auto.tolist())),
            "slowest other solver": "-" if slow is None else slow["method"],
            "s": text.ratio(None if slow is None else slow["solve_seconds"]),
        })  # fmt: skip
    if not lines:
        return ""
    parts = [
        "## Solve times", "",
        "Wall seconds on the hardware [below](#how-it-was-measured). The longest time of `auto` is the time of a "
        "first plan: a row of "
        "`auto` that finds its model's curve already searched only reads it.", "",
    ]  # fmt: skip
    if (t["ops"] > 0).any():
        pictures["times.svg"] = svg(times_chart(t))
        parts += [f"![Seconds to trace and to solve against the size of the graph]({folder}/times.svg)", ""]
    return "\n".join([*parts, text.table(lines, texts=("slowest other solver",))])


def times_chart(t: pd.DataFrame) -> Figure:
    """Seconds to trace each model, and to solve each row, against the ops of the graph, on logarithmic axes."""
    solved = t[(t["solve_seconds"] > 0) & (t["ops"] > 0)]
    traced = t[(t["trace_seconds"] > 0) & (t["ops"] > 0)].drop_duplicates(MODEL)
    auto = solved["solver_name"] == "auto"
    with plt.rc_context(RC):
        figure, axes = plt.subplots(figsize=(9.6, 4.9))
        figure.subplots_adjust(left=0.085, right=0.97, top=0.80, bottom=0.11)
        titled(figure, "Seconds to trace and to solve", "Each dot is a row; for tracing, a model.")
        series = (
            ("other solvers", solved[~auto], "solve_seconds", GREY, 3.2), ("auto", solved[auto], "solve_seconds", BLUE, 3.6),
            ("trace", traced, "trace_seconds", ORANGE, 5.5),
        )  # fmt: skip
        for name, rows, column, colour, size in series:
            if not rows.empty:
                axes.plot(
                    rows["ops"], rows[column], "o", color=colour, markersize=size, label=name, markeredgecolor="white",
                    markeredgewidth=0.4,
                )  # fmt: skip
        log_axes(axes, "ops of the graph", "seconds")
        figure.legend(loc="upper left", bbox_to_anchor=(0.02, 0.865), ncols=3, borderaxespad=0, handletextpad=0.2)
    return figure
