"""The page's part on small models on real tensors: allocator peaks, wall times and bitwise parity."""

from __future__ import annotations

import pandas as pd

from page import text

SUITE = "cpu"
SHOWN = ("checkpoint-blocks", "auto@8%", "auto=0.5", "auto=0.3")


def cpu_part(t: pd.DataFrame) -> str:
    """The page's part on the suite cpu; empty without rows of it."""
    rows = t[t["suite"] == SUITE]
    if rows.empty:
        return ""
    timed = rows[rows["ran"] & rows["wall_ratio"].notna() & rows["method"].isin(SHOWN)]
    timed = timed.drop_duplicates(["model", "method"], keep="last")
    cell = timed["share"].map(text.percent) + ", " + timed["wall_ratio"].map("{:.2f} x".format)
    cells = timed.assign(cell=cell).pivot(index="model", columns="method", values="cell")
    cells = cells.reindex(index=rows["model"].unique(), columns=SHOWN).astype(object).fillna("-")
    told = rows.groupby("model", sort=False)["parity"].agg(lambda p: f"{p.dropna().astype(bool).sum()} of {p.count()}")
    medians = timed.groupby("method")["wall_ratio"].median().reindex(SHOWN)
    lines = [{"model": model, **of, "parity": told[model]} for model, of in cells.to_dict("index").items()]
    middle = {m: text.formatted(x, ".2f") + ("" if pd.isna(x) else " x") for m, x in medians.items()}
    lines.append({"model": "median", **middle, "parity": ""})
    return "\n".join([
        "## Small models on a CPU", "",
        "The suite cpu: small copies of the models on real tensors. Peaks are the allocator's, as a share of the plain step's "
        "activations. Times are wall times of a step divided by the plain step's, both timed in turns, the median of "
        "five rounds. "
        "In steps this small, Python's work for each op weighs most. Parity: planned rows whose loss, gradients, buffers and "
        "random state equal the plain step's bit for bit.", "",
        text.table(lines),
    ])  # fmt: skip
