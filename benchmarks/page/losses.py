"""The page's parts on where another method beats `auto`."""

from __future__ import annotations

import math

import pandas as pd

from page import text
from page.rows import MODEL
from page.standings import MEASURES, TOLERANCE_SHARE


def counts(found: pd.DataFrame) -> pd.DataFrame:
    """By measure: rows compared, matched, lost, and not asked."""
    beaten = found["loss"] > TOLERANCE_SHARE
    lost = beaten & found["asked"].astype(bool)
    marks = pd.DataFrame({
        "measure": found["measure"], "compared": 1, "matched": ~beaten, "lost": lost, "not asked": beaten & ~lost,
    })  # fmt: skip
    return marks.groupby("measure").sum().reindex(list(MEASURES), fill_value=0).astype(int)


def lose_part(found: pd.DataFrame, appendix: str) -> str:
    """Counts by measure, and every loss, the greatest first. appendix : the link to that page."""
    summary = [
        {
            "by": MEASURES[str(m)], "rows compared": f"{c['compared']:,}", "matched": f"{c['matched']:,}",
            "losses": f"{c['lost']:,}", "auto not asked there": f"{c['not asked']:,}",
        }
        for m, c in counts(found).iterrows()
    ]  # fmt: skip
    losses = found[(found["loss"] > TOLERANCE_SHARE) & found["asked"].astype(bool)]
    lines = [
        {
            "model": s["model"], "method": s["method"], "planned by": text.formatted(s["cost"], ""),
            "by": MEASURES[s["measure"]], "peak MB": text.mb(s["peak_mb"]), "of plain": text.percent(s["share"]),
            "extra": text.plus(s["overhead"]), "nearest auto": text.formatted(s["nearest"], ""),
            "its peak MB": text.mb(s["nearest_peak_mb"]), "its extra": text.plus(s["nearest_overhead"]),
            "worse by": _worse(s["loss"]),
        }
        for s in losses.sort_values("loss", ascending=False, kind="stable").to_dict("records")
    ]  # fmt: skip
    all_losses = text.table(lines, texts=("method", "planned by", "by", "nearest auto"))
    return "\n".join([
        "## Where auto loses", "",
        f"A row of another method is **matched** if some row of `auto` is as small and as cheap within {TOLERANCE_SHARE:.0%}. "
        "A row that is not matched is a **loss** if it answers a question better that `auto` was asked. If `auto` was asked no "
        "such question, the other row lies between two rows of `auto`, and the comparison shows nothing. `Worse by` is the "
        "larger of two figures: how much larger the nearest row of `auto` is, and how much more its whole step costs.", "",
        text.table(summary), "", all_losses if lines else "These rows show no loss.", "",
        f"[Is auto dominated?]({appendix}#is-auto-dominated) has the counts by model. They leave out the time to solve: `auto` "
        f"takes longer than most single solvers ([Solve times]({appendix}#solve-times)).",
    ])  # fmt: skip


def dominated_part(found: pd.DataFrame, summary: str) -> str:
    """By each measure one line per model: how many rows are matched, and which are not and by how much. summary : the link to
    that page."""
    parts = [
        "## Is auto dominated?",
        "",
        "A row of `auto` matches every row of another method that is not named here "
        f"([definition]({summary}#where-auto-loses)). The figure "
        "behind a name says by how much the nearest row of `auto` is worse. Brackets give the cost that a plan "
        "minimised, if it is "
        "not the cost of the table.",
    ]
    for measure, name in MEASURES.items():
        mine = found[found["measure"] == measure]
        parts += ["", f"### By {name}", ""]
        if mine.empty:
            parts.append(f"No row states its {name}.")
            continue
        lines = []
        for (suite, model), of in mine.groupby(MODEL, sort=False):
            asked = of["asked"].astype(bool)
            lines.append({
                "model": model, "suite": suite, "rows compared": str(len(of)),
                "matched": str(int((of["loss"] <= TOLERANCE_SHARE).sum())),
                "loses to": _named(of[asked]), "not asked": _named(of[~asked]),
            })  # fmt: skip
        parts.append(text.table(lines, texts=("suite", "loses to", "not asked")))
    return "\n".join(parts)


def _named(of: pd.DataFrame) -> str:
    units = {"flops": " (FLOPs)", "seconds": " (time)", "unit": " (unit)"}
    worst = of[of["loss"] > TOLERANCE_SHARE].sort_values("loss", ascending=False, kind="stable")
    words = [
        f"{s['method']}{'' if s['cost'] == s['measure'] else units.get(s['cost'], '')} {_worse(s['loss'])}"
        for s in worst.to_dict("records")
    ]
    return ", ".join(words) or "-"


def _worse(loss: float) -> str:
    return "no row of auto" if math.isinf(loss) else f"{loss:+.1%}"
