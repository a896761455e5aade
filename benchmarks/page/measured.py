"""The page's part on how its rows were measured, and how to measure them again."""

from __future__ import annotations

import pandas as pd

from page import text
from page.rows import MODEL
from rekindle.bench.methods import TARGET


def measured_part(t: pd.DataFrame) -> str:
    """Definitions, provenance of the rows, and the commands that reproduce them."""
    lines = [
        "## How it was measured", "",
        f"Every figure on these pages comes from {len(t):,} rows of `rekindle bench` (one per model, method and cost; "
        f"{len(t.drop_duplicates(MODEL))} models, {t['method'].nunique()} methods); the pages are generated from them.", "",
        "- **Peak** belongs to the executed training step, forward and backward: the most bytes in live storages that the step "
        "created, counted at operator boundaries. Most suites run on fake tensors at full batch size. Fake tensors "
        "have shapes and "
        "storages but no data, so the peak is exact to the byte, equal on every run, and needs no GPU. MB is 2^20 "
        "bytes. The suite "
        "seeds follows the published protocol, in which the input and its gradient count. An allocator's rounding and "
        "fragmentation come on top. If a model branches on values that follow from shapes (whether its mask masks "
        "anything), it "
        "takes the same branch as with data.",
        "- **Extra FLOPs** are measured: the FLOPs of the operators that the step ran, over the plain step's.",
        *_modelled(t),
        "- **Certified**: no schedule of any order has a smaller peak within that extra cost.",
        "", "| | |", "|---|---|", f"| dates | {text.span(t['date'])} |", f"| hardware | {text.listed(t['hardware'])} |",
    ]  # fmt: skip
    versions = pd.DataFrame([v for v in t["versions"] if isinstance(v, dict)])
    lines += [
        f"| {name} | {text.listed(versions[name].astype(str).where(versions[name].notna()))} |" for name in versions
    ]
    if t["commit"].notna().any():
        lines.append(f"| commit | {text.listed(t['commit'])} |")
    return "\n".join([*lines, "", "To reproduce:", "", "```sh", *_commands(t), "```"])


def _modelled(t: pd.DataFrame) -> list[str]:
    timed = t[t["seconds_overhead"].notna()]
    names = timed["target"].fillna(TARGET).unique()
    cards = " or ".join("an RTX 2080 Ti, the published table's card" if n == TARGET else n for n in names)
    words = f"- **Extra time** is modelled, not measured: by the roofline of {cards}. "
    return [words + "Every operator takes a launch, and no two overlap."] if cards else []


def _commands(t: pd.DataFrame) -> list[str]:
    """The commands that rows state; for other rows, commands that run the same models under the same methods."""
    found = list(dict.fromkeys(t["command"].dropna()))
    rows = t[t["command"].isna()].assign(cost=t["cost"].fillna("flops"), target=t["target"].fillna(TARGET))
    for (suite, cost, target), mine in rows.groupby(["suite", "cost", "target"], sort=False):
        models = mine["model"].unique()
        every = len(models) == t.loc[t["suite"] == suite, "model"].nunique()
        found.append(
            f"python benchmarks/bench.py --suite {suite}{'' if every else ' --models ' + ','.join(models)} "
            f"--methods {','.join(mine['method'].unique())} --cost {cost}{'' if target == TARGET else f' --target {target}'} "
            f"--out out/bench-{suite}.jsonl"
        )
    return [*found, 'make bench-report ROWS="out/bench-*.jsonl"']
