"""The page's part on language models whose head and loss run in chunks, by PyTorch's own ways and by plans."""

from __future__ import annotations

import pandas as pd

from page import text
from page.rows import UNUSED
from rekindle.bench.methods import TOKEN_COMPARATORS

AUTO = [f"auto={m}" for m in TOKEN_COMPARATORS]  # least cost within their memory


def heads_part(t: pd.DataFrame) -> str:
    """A table of language-model heads: PyTorch's chunked losses, and `auto` in their memory or for the least; "" if none ran.

    t : all rows of a suite. A model is in the table if a chunked loss ran on it, with its logits or without, or a plan without
        its logits whose gradients may be equal up to rounding.
    """
    own = t["model"].str.removesuffix(UNUSED)
    ran = t["ran"] & (t["method"].isin(TOKEN_COMPARATORS) | t["close"] & t["model"].str.endswith(UNUSED))
    shown = t[
        own.isin(own[ran])
        & t["ran"]
        & (
            t["method"].isin(["plain", *TOKEN_COMPARATORS])
            | t["method"].isin(AUTO)
            | t["method"].str.startswith("auto@")
        )
    ]
    if shown.empty:
        return ""
    shown = shown.sort_values("model", kind="stable")
    shown = shown.drop_duplicates(["model", "method", "planned_in"])  # unplanned rows recur for every cost
    lines = [
        {
            "model": r["model"], "method": r["method"], "planned by": text.formatted(r["planned_in"], ""),
            "peak MB": text.mb(r["peak_mb"]), "of plain": text.percent(r["share"]),
            "extra FLOPs": text.plus(r["extra_flops"]), "extra time": text.plus(r["extra_seconds"]),
            "ops in slices": text.whole(r["slices"]),
            "gradients added up": ", ".join(r["sums"]) if isinstance(r["sums"], list) and r["sums"] else "-",
            "beside the plain step": text.short(r["note"]) if isinstance(r["note"], str) and r["note"] else "-",
        }
        for r in shown.to_dict("records")
    ]  # fmt: skip
    return "\n".join([
        "## Heads and losses in chunks", "",
        "A language model's logits are often its largest tensors. **linear-cross-entropy** is PyTorch's own operator for "
        "a head and its loss, and returns no logits; **auto-chunker** is Inductor's pass, which refuses most steps that "
        f"return their logits. Plans of a model whose name ends in `{UNUSED}` leave the logits out too. These two ways, and "
        "plans named `~close`, add up a gradient in another order than the plain step, so that it is equal up to rounding: "
        "the last column has the largest difference that was measured.", "",
        text.table(lines, texts=("method", "planned by", "gradients added up", "beside the plain step")),
    ])  # fmt: skip
