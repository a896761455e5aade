"""The first page: the results in a few lines, one table, one picture, and where Rekindle loses."""

from __future__ import annotations

import pandas as pd

from page import losses, on_cpu, published, text, unit_costs
from page.rows import picked
from page.standings import MEASURES

METHODS = {  # methods of the table with the cost that their plans keep low, and their names in it
    ("plain", "flops"): "the plain step",
    ("checkpoint-blocks", "flops"): "`torch.utils.checkpoint` around each block",
    ("selective-matmul", "flops"): "selective checkpointing (saves products)",
    ("auto=checkpoint-blocks", "seconds"): "**Rekindle**, least time in the memory of checkpointed blocks",
    ("auto=checkpoint-blocks", "flops"): "**Rekindle**, least FLOPs in that memory",
    ("auto@8%", "flops"): "**Rekindle**, least memory within +8 % FLOPs",
    ("auto@33%", "flops"): "**Rekindle**, least memory within +33 % FLOPs",
}
HERO = "resnet50"


def results(t: pd.DataFrame, full: pd.DataFrame, found: pd.DataFrame) -> str:
    """The results in a few lines. full : all rows at full size; found : the standings of them."""
    lines = []
    mean = published.means(published.comparison(full))
    if mean["to_ogc"] is not None:
        lines.append(
            f"**Against the published solver** (OGC, CVPR 2021): at its extra cost of +33 % FLOPs, `auto` needs "
            f"{mean['to_ogc']:.2f} times its memory. Within its memory, `auto` costs "
            f"{text.plus(mean['within_flops'])} FLOPs. "
            "Both are geometric means ([table](benchmarks/seeds.md#the-published-table-beside-ours))."
        )
    n = losses.counts(found)
    for m, c in n[n["compared"] > 0].iterrows():
        lines.append(
            f"**Against every other method, by {MEASURES[str(m)]}**: `auto` matches {c['matched']:,} of "
            f"{c['compared']:,} rows "
            f"within 1 % and loses {c['lost']:,} ([table](#where-auto-loses))."
        )
    half, quarter = (unit_costs.mean_extra(full, share) for share in (0.5, 0.25))
    if half is not None and quarter is not None:
        lines.append(
            f"**Modern models**: half of the activation memory costs {half:+.1%} op runs on average, a quarter "
            f"{quarter:+.1%} "
            "([table](benchmarks/modern.md#modern-models-at-half-and-a-quarter-of-the-memory))."
        )
    apart = (t["peak_mb"] / t["predicted_mb"] - 1).abs()[t["ran"]].dropna()
    if not apart.empty:
        lines.append(
            f"**Predictions hold**: the executed peak is within {apart.max():.2%} of the predicted one in all "
            f"{len(apart):,} "
            "planned rows."
        )
    parity = t["parity"].dropna().astype(bool)
    if not parity.empty:
        lines.append(f"**Same bits as the plain step**: {parity.sum()} of the {len(parity)} rows that can show it.")
    return "\n".join(f"- {line}" for line in lines)


def one_table(full: pd.DataFrame) -> str:
    """What people use and ours, as geometric means over the published models on which all of the methods ran."""
    seeds = full[full["suite"] == "seeds"]
    by_cost = {c: picked(seeds, c).query("ran") for c in ("flops", "seconds")}
    used = {(m, c): by_cost[c][by_cost[c]["method"] == m].set_index("model") for m, c in METHODS}
    used = {m: rows for m, rows in used.items() if not rows.empty}
    if not {("plain", "flops"), ("auto@8%", "flops")} <= set(used):
        return ""
    shared = sorted(set.intersection(*(set(rows.index) for rows in used.values())))
    if not shared:
        return ""
    lines = []
    for method, rows in used.items():
        mine = rows.loc[shared]
        extra = {c: text.geometric((1 + mine[c].dropna()).tolist()) for c in ("extra_seconds", "extra_flops")}
        lines.append({
            "method": METHODS[method], "memory": text.percent(text.geometric(mine["share"].tolist())),
            **{name: text.plus(None if x is None else x - 1) for name, x in
               zip(("extra time", "extra FLOPs"), extra.values(), strict=True)},
        })  # fmt: skip
    return (
        "## Today's ways, and ours\n\n"
        f"Geometric means over the {len(shared)} published models on which every method of the table runs "
        "([all of them](benchmarks/seeds.md)). Memory is the share of the plain step's activation peak, and time is modelled. "
        "A plan for least time costs more FLOPs than one for least FLOPs, and less time.\n\n" + text.table(lines)
    )


def also_loses(t: pd.DataFrame) -> str:
    """Where plain steps, simpler ways or less waiting are better; figures of the rows."""
    lines = []
    waits = t.loc[(t["solver_name"] == "auto") & (t["suite"] != on_cpu.SUITE), "solve_seconds"].dropna()
    if not waits.empty:
        lines.append(
            "**Planning takes time.** These rows search with effort thorough: half of them took over "
            f"{waits.median():.0f} s, the "
            f"longest {waits.max():,.0f} s. `torch.utils.checkpoint` takes none. "
            "`python benchmarks/plan_time.py efforts` measures the default effort, which stops much earlier."
        )
    small = t[(t["suite"] == on_cpu.SUITE) & t["ran"] & t["wall_ratio"].notna() & (t["method"] == "auto=0.5")]
    if not small.empty:
        worst = small.sort_values("wall_ratio").iloc[-1]
        lines.append(
            "**Small steps.** On small models on a CPU half the memory costs "
            f"{small['wall_ratio'].median() - 1:+.0%} wall time "
            f"(median), and {worst['wall_ratio'] - 1:+.0%} on {worst['model']}, where FLOPs rise by "
            f"{worst['extra_flops']:+.0%}: "
            "Python's work for each op weighs most there ([table](benchmarks/cpu.md))."
        )
    modern = unit_costs.unit_rows(t)
    quarter = modern[(modern["method"] == "auto=0.25") & (modern["cost"] == "unit")]
    worst = quarter[quarter["ran"]].sort_values("extra_unit")
    if not worst.empty:
        w = worst.iloc[-1]
        lines.append(
            f"**U-shaped models.** A quarter of {w['model']}'s memory costs {w['extra_unit']:+.0%} op runs "
            "(proven: at least "
            f"{w['least_overhead']:+.0%}). Between the two, a better plan may exist ([table](benchmarks/modern.md))."
        )
    return "\n".join(f"- {line}" for line in lines)


def names() -> str:
    """How to read the names of methods."""
    return (
        "## Names of methods\n\n"
        "**auto@8%** is the least memory within 8 % extra cost, **auto=0.5** the least cost within half of "
        "the plain activation "
        "peak, **auto=ogc** the least cost within the memory of the published solver, **auto=NAME** within "
        "the memory of another "
        "method. A solver's bare name is its plan of least memory. **checkpoint-blocks**, **checkpoint-sequential**, "
        "**selective-matmul**, **compile-0.75** to **compile-0**, **linear-cross-entropy** and **auto-chunker** "
        "are PyTorch's own; the last two run a language model's head and loss in chunks. **auto@8%~close** may add up a "
        "gradient in another order, and a model whose name ends in **-unused** leaves its logits out. Peaks and FLOPs are "
        "measured on executed "
        "steps, and extra time is modelled: see [how it was measured](benchmarks/appendix.md#how-it-was-measured)."
    )
