"""Where `auto` loses and where it is matched: the page's parts on domination."""

from __future__ import annotations

import math
from collections.abc import Sequence

from . import markdown as md
from .domination import TOLERANCE, Standing
from .rows import Row, by_model, plain_mb

MEASURES = {"flops": "FLOPs", "seconds": "modelled time"}


def lose_part(rows: Sequence[Row], found: Sequence[Standing]) -> str:
    """Counts by measure, and every loss by itself, the greatest first."""
    counts = [["by", "rows compared", "matched", "losses", "auto not asked there"]]
    for m, name in MEASURES.items():
        mine = [s for s in found if s.measure == m]
        beaten = [s for s in mine if s.loss > TOLERANCE]
        lost = sum(s.asked for s in beaten)
        counts.append([name, *(f"{x:,}" for x in (len(mine), len(mine) - len(beaten), lost, len(beaten) - lost))])
    plains = {key: plain_mb(mine) for key, mine in by_model(rows).items()}
    head = ["model", "method", "planned by", "by", "peak MB", "of plain", "extra"]
    lines = [[*head, "nearest auto", "its peak MB", "its extra", "worse by"]]
    for s in sorted((s for s in found if s.loss > TOLERANCE and s.asked), key=lambda s: -s.loss):
        lines.append([
            s.model, s.method, s.cost or "-", MEASURES[s.measure], md.mb(s.peak_mb),
            md.share(s.peak_mb, plains[s.suite, s.model]), md.plus(s.overhead), s.nearest or "-", md.mb(s.nearest_peak_mb),
            md.plus(s.nearest_overhead), _worse(s),
        ])  # fmt: skip
    return "\n".join([
        "## Where we lose", "",
        f"A row of another method is **matched** where some row of `auto` is as small and as cheap within {TOLERANCE:.0%}. "
        "Where none is, and the other row is the better answer to a question that `auto` was asked, that is a **loss**. Where "
        "`auto` was asked no such question, the other row lies between two of auto's and nothing is shown either way. `Worse "
        "by` is the larger of two: how much larger the nearest row of `auto` is, and how much dearer the whole step is.", "",
        md.table(counts), "", md.table(lines, texts=(1, 2, 3, 7)) if len(lines) > 1 else "No loss is shown by these rows.", "",
        "Model by model: [Is auto dominated?](#is-auto-dominated). Not counted here is the time to solve: `auto` takes longer "
        "than most single solvers ([Solve times](#solve-times)).",
    ])  # fmt: skip


def dominated_part(found: Sequence[Standing]) -> str:
    """By each measure one line per model: how many rows are matched, and which are not and by how much."""
    text = [
        "## Is auto dominated?",
        "",
        "Every row of another method that is not named here is matched by a row of `auto`, as explained "
        "[above](#where-we-lose); behind a name, by how much the nearest row of `auto` is worse. A plan made for "
        "another cost than the one looked at has that cost in brackets.",
    ]
    for m, name in MEASURES.items():
        mine = [s for s in found if s.measure == m]
        text += ["", f"### By {name}", ""]
        if not mine:
            text.append(f"No row says its {name}.")
            continue
        lines = [["model", "suite", "rows compared", "matched", "loses to", "not asked"]]
        for suite, model in dict.fromkeys((s.suite, s.model) for s in mine):
            of = [s for s in mine if (s.suite, s.model) == (suite, model)]
            matched = sum(s.loss <= TOLERANCE for s in of)
            lines.append([model, suite, str(len(of)), str(matched), _named(of, True), _named(of, False)])
        text.append(md.table(lines, texts=(1, 4, 5)))
    return "\n".join(text)


def _named(found: Sequence[Standing], asked: bool) -> str:
    chosen = sorted((s for s in found if s.loss > TOLERANCE and s.asked == asked), key=lambda s: -s.loss)
    other = {None: "", "flops": " (FLOPs)", "seconds": " (time)", "unit": " (unit)"}
    words = [
        f"{s.method}{'' if s.cost == s.measure else other.get(s.cost, f' ({s.cost})')} {_worse(s)}" for s in chosen
    ]
    return ", ".join(words) or "-"


def _worse(s: Standing) -> str:
    return "no row of auto" if math.isinf(s.loss) else f"{s.loss:+.1%}"
