"""The page's part on plans whose gradients may be equal up to rounding, beside those with the plain step's bits."""

from __future__ import annotations

import pandas as pd

from page import text
from page.rows import UNUSED

END = "~close"


def rounding_part(t: pd.DataFrame) -> str:
    """A table with a line per model: peaks for each goal that was asked for in both ways; "" if none was.

    t : all rows of a suite. Models whose plans leave logits out stand in the table of heads.
    """
    ran = t[t["ran"] & ~t["model"].str.endswith(UNUSED)]
    close = ran[ran["close"]]
    if close.empty:
        return ""
    methods = [m for end in dict.fromkeys(close["method"]) for m in (end.removesuffix(END), end)]
    by = {(r["model"], r["method"]): r for r in ran[ran["method"].isin(methods)].to_dict("records")}
    lines = [
        {"model": model, "plain": text.mb(mine["plain_peak_mb"].iloc[0])}
        | {m: _peak(by.get((model, m))) for m in methods}
        for model, mine in close.groupby("model", sort=False)
    ]
    return "\n".join([
        "## With the plain step's bits, and up to rounding", "",
        f"Peak MB and extra FLOPs. Plans named `{END}` may run parts of the step in [slices](../slices.md) whose shares of a "
        "gradient are added up in another order than the plain step's.", "",
        text.table(lines),
    ])  # fmt: skip


def _peak(row: dict[str, object] | None) -> str:
    return "-" if row is None else f"{text.mb(row['peak_mb'])} ({text.plus(row['extra_flops'])})"
