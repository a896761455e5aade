"""The page's part on modern models at half and a quarter of the plain activations, every operator at the same cost.

A. Imanishi, Z. Xu, M. Takagi, S. Wang, E. Castillo, A Fast Heuristic to Optimize Time-Space Tradeoff for Large Models,
NeurIPS 2023; its method is called FastSA.
"""

from __future__ import annotations

import pandas as pd

from page import text
from page.rows import UNUSED

FASTSA = {0.5: 0.07, 0.25: 0.18}  # share of the plain peak -> published mean extra cost
WORDS = {"flops": "FLOPs", "seconds": "time", "unit": "op runs"}


def unit_rows(t: pd.DataFrame) -> pd.DataFrame:
    """All rows of models of the suite modern that have a row planned in unit costs. A model that stands there once more, with
    its logits unused, counts once."""
    modern = t[(t["suite"] == "modern") & ~t["model"].str.endswith(UNUSED)]
    return modern[modern["model"].isin(modern.loc[modern["cost"] == "unit", "model"])]


def mean_extra(t: pd.DataFrame, share: float) -> float | None:
    """Mean extra op runs within that share of the plain peak, over the models that reach it."""
    rows = unit_rows(t)
    rows = rows[(rows["cost"] == "unit") & (rows["method"] == f"auto={share:g}") & rows["ran"]]
    return text.mean(rows["extra_unit"].dropna().tolist())


def unit_part(t: pd.DataFrame) -> str:
    """The page's part on the suite modern in unit costs; empty if no row was planned in them."""
    rows = unit_rows(t)
    if rows.empty:
        return ""
    lines, reached = [], {share: list[dict[str, float]]() for share in FASTSA}
    tally = {share: {"reached": 0, "certified impossible": 0, "neither": 0} for share in FASTSA}
    for model, mine in rows.groupby("model", sort=False):
        unit = mine[mine["cost"] == "unit"].drop_duplicates("method", keep="last").set_index("method", drop=False)
        goals = unit[unit["method"].isin([f"auto={share:g}" for share in FASTSA])]
        line = {"model": str(model), **{c: text.whole(_first(goals[c])) for c in ("ops", "nodes")}}
        proofs = []
        for share in FASTSA:
            name = f"auto={share:g}"
            row = unit.loc[name] if name in unit.index else None
            nodes = None
            if row is not None and row["ran"] and pd.notna(row["extra_unit"]):
                tally[share]["reached"] += 1
                reached[share].append(row[["extra_unit", "nodes_overhead", "least_overhead"]].to_dict())
                least, nodes = row["least_overhead"], row["nodes_overhead"]
                proven = "" if pd.isna(least) else f" (≥ {least:.1%})"
                cell = f"{row['extra_unit']:+.1%}{proven} at {text.percent(row['share'])}"
            elif (proof := impossible(mine, share)) is not None:
                tally[share]["certified impossible"] += 1
                proofs.append(proof)
                cell = "impossible"
            else:
                tally[share]["neither"] += 1
                cell = "not run" if row is None else "not reached"
            line |= {name: cell, f"{name}, nodes": text.plus(nodes)}
        lines.append(line | {"certified": "; ".join(dict.fromkeys(proofs)) or "-"})
    lines += _means(lines[0], {share: pd.DataFrame(found) for share, found in reached.items()})
    counts = "; ".join(f"{s:.0%}: " + ", ".join(f"{n} {what}" for what, n in c.items()) for s, c in tally.items())
    return "\n".join([
        "## Modern models at half and a quarter of the memory", "",
        "Extra cost within half and a quarter of the plain step's activation peak, counted in two ways. In **op runs** every "
        "operator that computes something costs one and views are free. The plans minimise op runs; brackets give the "
        "certified "
        "least cost of any schedule within that memory. In **nodes** every node of the captured torch.fx graph costs "
        "one, views "
        "and members of an operator's result included. The FastSA paper gives each node of its graphs the same cost. "
        "That views "
        "are among its nodes is our reading: its LLaMA-7B has 8,330 nodes, and it does not model that views share memory. Its "
        "means are over 23 models, not all of them the models here; our means are over the models that reach that memory.", "",
        text.table(lines), "", f"{counts}.",
    ])  # fmt: skip


def _means(like: dict[str, str], reached: dict[float, pd.DataFrame]) -> list[dict[str, str]]:
    """The lines below the models: our means, certified means, and FastSA's. A mean needs a figure of every model reached."""

    def mean(share: float, column: str) -> str:
        found = reached[share]
        whole = not found.empty and found[column].notna().all()
        return text.plus(text.mean(found[column].tolist()) if whole else None)

    def line(name: str, cells: dict[str, str]) -> dict[str, str]:
        return dict.fromkeys(like, "") | {"model": name} | cells

    ours = {f"auto={s:g}": mean(s, "extra_unit") for s in FASTSA}
    ours |= {f"auto={s:g}, nodes": mean(s, "nodes_overhead") for s in FASTSA}
    found = [line("mean", ours)]
    if any(not r.empty and r["least_overhead"].notna().any() for r in reached.values()):
        least = {f"auto={s:g}": mean(s, "least_overhead") for s in FASTSA}
        found.append(line("mean, certified to be at least", least))
    theirs = {f"auto={s:g}{more}": text.plus(x) for s, x in FASTSA.items() for more in ("", ", nodes")}
    return [*found, line("FastSA, published mean", theirs)]


def _first(values: pd.Series) -> float | None:
    known = values.dropna()
    return None if known.empty else float(known.iloc[0])


def impossible(rows: pd.DataFrame, share: float) -> str | None:
    """The certificate that no plan of the model fits that share of the plain peak; None if the rows have none.

    A bound on a failed row holds at any overhead; a bound on a row that ran holds up to that row's overhead.
    """
    over = rows[rows["bound_mb"] > share * rows["plain_peak_mb"]]
    if over.empty:
        return None
    failed = over[~over["ran"]]
    if not failed.empty:
        best = failed.loc[failed["bound_mb"].idxmax()]
        return f"none below {best['bound_mb'] / best['plain_peak_mb']:.1%}"
    best = over.fillna({"overhead": 0.0}).sort_values(["overhead", "bound_mb"], kind="stable").iloc[-1]
    cost = WORDS.get("flops" if pd.isna(best["cost"]) else best["cost"], "cost")
    return f"none below {best['bound_mb'] / best['plain_peak_mb']:.1%} within {best['overhead']:+.1%} {cost}"
