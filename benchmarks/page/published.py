"""The page's part on the published table: our rows beside it, model by model.

J. Feng, D. Huang, Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs, CVPR 2021; its solver is called OGC.
"""

from __future__ import annotations

import pandas as pd

from page import text
from page.rows import picked

SAME_SHARE = 0.01  # a published plain step within this share of ours counts as the same measurement
RERUN = "measured_ogc_nonreentrant_mb"
RESNET18 = (
    "- A run of resnet18 by PyTorch (94.0 MB plain, 51.3 MB by OGC) is left out: it cannot have had batch 256, whose "
    "input alone "
    "takes 147 MB."
)
NOTES = {
    "¶": "PyTorch did not run OGC's plan: `to OGC` is over the published figure, whose plain step equals ours.",
    "†": "no figure was published.",
    "§": "of a plan made for least FLOPs, not for least time.",
    "‡": "no published figure is comparable in MB: PyTorch did not run OGC's plan, and the published plain step "
    "differs from ours "
    f"by more than {SAME_SHARE:.0%}. The shares of each one's own plain step are comparable.",
}


def comparison(t: pd.DataFrame) -> pd.DataFrame:
    """One line per model of the suite seeds, by model: published figures and ours, sizes in MB, costs as fractions."""
    seeds = t[t["suite"] == "seeds"]
    found = seeds.groupby("model", sort=False)[
        ["batch", "published_regular_mb", "published_ogc_mb", RERUN, "plain_peak_mb"]
    ].first()
    by_flops, by_seconds = picked(seeds, "flops").query("ran"), picked(seeds, "seconds").query("ran")
    equal_cost = by_flops[by_flops["method"] == "auto@33%"].set_index("model")
    equal_memory = by_flops[by_flops["method"] == "auto=ogc"].set_index("model")
    timed = by_seconds[by_seconds["method"] == "auto=ogc"].set_index("model")
    found["ogc_share"] = found["published_ogc_mb"] / found["published_regular_mb"]
    found["ours_mb"] = equal_cost["peak_mb"]
    found["ours_flops"] = equal_cost["extra_flops"]
    found["ours_share"] = equal_cost["share"]
    found["within_mb"] = equal_memory["peak_mb"]
    found["within_flops"] = equal_memory["extra_flops"]
    found["within_seconds"] = timed["extra_seconds"]
    found["by_flops"] = (timed["planned_in"] != "seconds").reindex(found.index, fill_value=False) & found[
        "within_seconds"
    ].notna()
    same = (found["plain_peak_mb"] / found["published_regular_mb"] - 1).abs() <= SAME_SHARE
    found["target_mb"] = found[RERUN].fillna(found["published_ogc_mb"].where(same))
    found["mark"] = "‡"
    found.loc[same, "mark"] = "¶"
    found.loc[found[RERUN].notna(), "mark"] = ""
    found.loc[found[RERUN].isna() & found["published_ogc_mb"].isna(), "mark"] = "†"
    found["to_ogc"] = found["ours_mb"] / found["target_mb"]
    return found


def means(found: pd.DataFrame) -> dict[str, float | None]:
    """Geometric means: of shares and ratios; for extra costs, of the whole step's cost (1 + extra)."""
    both = found.dropna(subset=["ogc_share"])
    result = {
        "ogc_share": text.geometric(both["ogc_share"].tolist()),
        "ours_share": text.geometric(both["ours_share"].dropna().tolist()),
        "to_ogc": text.geometric(found["to_ogc"].dropna().tolist()),
    }
    for c in ("within_flops", "within_seconds"):
        whole = text.geometric((1 + found[c].dropna()).tolist())
        result[c] = None if whole is None else whole - 1
    return result


def published_part(t: pd.DataFrame) -> str:
    """The page's part on the suite seeds; empty without rows of it."""
    found = comparison(t)
    if found.empty:
        return ""
    lines = [
        {
            "model, batch": f"{model}, {text.whole(r['batch'])}{r['mark']}",
            "published: regular": text.mb(r["published_regular_mb"]), "OGC": text.mb(r["published_ogc_mb"]),
            "OGC of regular": text.percent(r["ogc_share"]), "OGC by PyTorch": text.mb(r[RERUN]),
            "ours: plain": text.mb(r["plain_peak_mb"]),
            "at OGC's overhead": text.mb(r["ours_mb"])
            + ("" if pd.isna(r["ours_flops"]) else f" ({text.plus(r['ours_flops'])})"),
            "of plain": text.percent(r["ours_share"]), "to OGC": text.ratio(r["to_ogc"]),
            "at OGC's memory": text.mb(r["within_mb"]), "extra FLOPs": text.plus(r["within_flops"]),
            "extra time": text.plus(r["within_seconds"]) + (" §" if r["by_flops"] else ""),
        }
        for model, r in found.iterrows()
    ]  # fmt: skip
    mean = means(found)
    last = dict.fromkeys(lines[0], "") | {
        "model, batch": "geometric mean", "OGC of regular": text.percent(mean["ogc_share"]),
        "of plain": text.percent(mean["ours_share"]), "to OGC": text.ratio(mean["to_ogc"]),
        "extra FLOPs": text.plus(mean["within_flops"]), "extra time": text.plus(mean["within_seconds"]),
    }  # fmt: skip
    marks = {*found["mark"], *(["§"] if found["by_flops"].any() else [])}
    notes = [f"- {mark} {words}" for mark, words in NOTES.items() if mark in marks]
    notes += [RESNET18] if "resnet18" in found.index else []
    return "\n".join([
        "## The published table beside ours", "",
        "Peak MB of one training step. `OGC` is the published solver at one extra forward (+33 % FLOPs); `OGC by "
        "PyTorch` is its "
        "plan, run by `torch.utils.checkpoint` and measured by the protocol used here. `At OGC's overhead` is "
        "auto@33%, with its "
        "extra FLOPs; `to OGC` is its peak divided by OGC's. `At OGC's memory` is auto=ogc: the cost of staying "
        "within the memory "
        "of the published solver.", "",
        text.table([*lines, last]), "",
        "Geometric means: of shares and ratios; for extra costs, of the whole step's cost (1 + extra).",
        *(["", *notes] if notes else []),
    ])  # fmt: skip
