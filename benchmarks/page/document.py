"""The whole page: its parts in order, and the files written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from page import losses, published, text, unit_costs
from page.frontier import frontier_svg
from page.growth import growth_part
from page.measured import measured_part
from page.on_cpu import SUITE, cpu_part
from page.rows import MODEL, table
from page.solve_times import times_part
from page.standings import MEASURES, standings
from rekindle.bench.row import Row
from rekindle.errors import UsageError


def write(rows: Sequence[Row], out: Path) -> list[Path]:
    """Write the page to `out` and its pictures to the folder beside it of the same name; returns the files written.

    Removes SVG files of that folder that the page no longer shows.

    Raises
    ------
    UsageError : there are no rows.
    """
    words, pictures = page(rows, out.stem)
    folder = out.parent / out.stem
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        if old.name not in pictures:
            old.unlink()
    for name, picture in pictures.items():
        (folder / name).write_text(picture, encoding="utf-8")
    out.write_text(words, encoding="utf-8")
    return [out, *(folder / name for name in pictures)]


def page(rows: Sequence[Row], folder: str) -> tuple[str, dict[str, str]]:
    """The page's Markdown and its pictures (file name -> SVG), which the page expects in `folder`.

    Raises
    ------
    UsageError : there are no rows.
    """
    if not rows:
        raise UsageError("the page needs at least one row; run `rekindle bench` first")
    t = table(rows)
    pictures: dict[str, str] = {}
    full = t[t["suite"] != SUITE]
    found = standings(full)
    parts = [
        "# Benchmarks", _results(t, full, found), published.published_part(full), losses.lose_part(found),
        unit_costs.unit_part(full), growth_part(full, folder, pictures), cpu_part(t), _curves(full, folder, pictures),
        losses.dominated_part(found), times_part(full, folder, pictures), _failed(t), measured_part(t),
    ]  # fmt: skip
    return "\n\n".join(p for p in parts if p) + "\n", pictures


def _results(t: pd.DataFrame, full: pd.DataFrame, found: pd.DataFrame) -> str:
    """The results in a few lines, and how to read the names of methods."""
    lines = []
    mean = published.means(published.comparison(full))
    if mean["to_ogc"] is not None:
        lines.append(
            f"**Against the published solver** (OGC, CVPR 2021): at its extra cost of +33 % FLOPs, `auto` needs "
            f"{mean['to_ogc']:.2f} times its memory. Within its memory, `auto` costs "
            f"{text.plus(mean['within_flops'])} FLOPs. Both "
            "are geometric means ([table](#the-published-table-beside-ours))."
        )
    n = losses.counts(found)
    for m, c in n[n["compared"] > 0].iterrows():
        lines.append(
            f"**Against every other method, by {MEASURES[str(m)]}**: `auto` matches {c['matched']:,} of {c['compared']:,} rows "
            f"within 1 % and loses {c['lost']:,} ([table](#where-auto-loses))."
        )
    half, quarter = (unit_costs.mean_extra(full, share) for share in (0.5, 0.25))
    if half is not None and quarter is not None:
        lines.append(
            f"**Modern models**: half of the activation memory costs {half:+.1%} op runs on average, a quarter {quarter:+.1%} "
            "([table](#modern-models-at-half-and-a-quarter-of-the-memory))."
        )
    apart = (t["peak_mb"] / t["predicted_mb"] - 1).abs()[t["ran"]].dropna()
    if not apart.empty:
        lines.append(
            f"**Predictions hold**: the executed peak is within {apart.max():.2%} of the predicted one in all "
            f"{len(apart)} planned "
            "rows."
        )
    parity = t["parity"].dropna().astype(bool)
    if not parity.empty:
        lines.append(f"**Same bits as the plain step**: {parity.sum()} of the {len(parity)} rows that can show it.")
    return "\n".join([
        *(f"- {line}" for line in lines), *([""] if lines else []),
        "**auto@8%** is the least memory within 8 % extra cost, **auto=0.5** the least cost within half of the plain "
        "activation "
        "peak, **auto=ogc** the least cost within the memory of the published solver, **auto=NAME** within the memory "
        "of another "
        "method. A solver's bare name is its plan of least memory. **checkpoint-blocks**, **checkpoint-sequential**, "
        "**selective-matmul** and **compile-0.75** to **compile-0** are PyTorch's own. Peaks and FLOPs are measured "
        "on executed "
        "steps, and extra time is modelled: see [How it was measured](#how-it-was-measured).",
    ])  # fmt: skip


def _curves(t: pd.DataFrame, folder: str, pictures: dict[str, str]) -> str:
    parts = [
        "## Peak against extra cost, model by model\n\n"
        "The blue staircase joins `auto`'s rows and shows only measured points. If rows carry a certified bound, no "
        "plan can lie in "
        "the grey area beyond the dashed line. Marks beyond the edge stand at the edge; the list below the panels has all "
        "figures."
    ]
    for (suite, model), mine in t.groupby(MODEL, sort=False):
        if mine["plain_peak_mb"].isna().all() or not mine["ran"].any():
            continue
        name = f"{text.slug(str(suite))}-{text.slug(str(model))}.svg"
        pictures[name] = frontier_svg(mine)
        parts.append(f"### {model} ({suite})\n\n![Peak against extra cost: {model}]({folder}/{name})")
    return "\n\n".join(parts) if len(parts) > 1 else ""


def _failed(t: pd.DataFrame) -> str:
    failed = t[~t["ran"]]
    if failed.empty:
        return ""
    lines = pd.DataFrame({
        "model": failed["model"], "method": failed["method"], "planned by": failed["planned_in"].fillna("-"),
        "why": [text.short(note) if isinstance(note, str) and note else "not stated" for note in failed["note"]],
    }).drop_duplicates()  # a method without a plan fails alike whatever cost the others minimise  # fmt: skip
    words = "Rows without a figure, and why: the method cannot run on the model, or its goal cannot be met."
    rows = text.table(lines.to_dict("records"), texts=("method", "planned by", "why"))
    return f"## What could not run\n\n{words}\n\n{rows}"
