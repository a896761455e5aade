"""How the peak grows with depth and length: the suite "deep", against sqrt(n) and log(n)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .loglog import exponent, loglog_chart
from .rows import Row, by_model, extra, pick

METHODS = ("plain", "chen-sqrt", "chen-recursive", "auto@33%", "auto@100%", "auto")
SPAN = 8  # growth is told over the last factor of eight in n, as far as rows reach


@dataclass(frozen=True)
class Growth:
    """One method on one family of models that differ in their size n alone.

    points : (n, peak in MB), by n.
    extra : (n, extra FLOPs as a fraction or None), likewise.
    """

    family: str
    method: str
    points: tuple[tuple[float, float], ...]
    extra: tuple[tuple[float, float | None], ...]

    @property
    def exponent(self) -> float:
        """b of peak ~ n^b, fitted to all points."""
        return exponent(self.points)

    @property
    def ends(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The points between which growth is told: the last, and the first within a factor of SPAN of it."""
        last = self.points[-1]
        return next(p for p in self.points if p[0] * SPAN >= last[0]), last

    @property
    def factors(self) -> tuple[float, float, float]:
        """Between the ends: growth of the peak, of sqrt(n) and of log(n)."""
        (a, low), (b, high) = self.ends
        return high / low, math.sqrt(b / a), math.log(b) / math.log(a) if a > 1 else math.inf


def growths(rows: Sequence[Row]) -> list[Growth]:
    """Of every family with at least two sizes: "lstm-512" is the family "lstm" at n = 512."""
    families: dict[str, dict[int, list[Row]]] = {}
    for (suite, model), mine in by_model(rows).items():
        found = re.fullmatch(r"(.*?)[-_@ ]?(\d+)", model)
        if suite == "deep" and found and found[1] and int(found[2]) > 0:
            families.setdefault(found[1], {})[int(found[2])] = mine
    out = []
    for family, sizes in families.items():
        for method in METHODS:
            picked = [(n, pick(mine, method, "flops")) for n, mine in sorted(sizes.items())]
            ran = [(n, r) for n, r in picked if r is not None and r["status"] == "ok"]
            if len(ran) >= 2:
                points = tuple((float(n), float(r["peak_mb"])) for n, r in ran)
                out.append(Growth(family, method, points, tuple((float(n), extra(r, "flops")) for n, r in ran)))
    return out


def growth_part(rows: Sequence[Row], folder: str, pictures: dict[str, str]) -> str:
    """The page's part on the suite deep; adds its pictures. Empty where no family has two sizes."""
    found = growths(rows)
    if not found:
        return ""
    text = [
        "## Growth with depth and length",
        "",
        "n is the number of layers or of unrolled steps. Growth is told over the last factor of "
        f"{SPAN} in n, as far as rows reach; the exponent is that of the power law fitted to all points.",
    ]
    for family in dict.fromkeys(g.family for g in found):
        mine = [g for g in found if g.family == family]
        name = f"growth-{re.sub(r'[^A-Za-z0-9._]+', '-', family)}.svg"
        pictures[name] = _chart(family, mine)
        text += ["", f"### {family}", "", f"![Peak against n: {family}]({folder}/{name})", ""]
        text += [
            "| method | n | peak MB | extra FLOPs | growth | √n grows | log n grows | exponent | at most as |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---|",
        ]
        for g in mine:
            (a, low), (b, high) = g.ends
            grown, root, log = g.factors
            cost = g.extra[-1][1]
            most = "log n" if grown <= log else "√n" if grown <= root else "n" if grown <= b / a else "more than n"
            text.append(
                f"| {g.method} | {a:,.0f} to {b:,.0f} | {low:,.1f} to {high:,.1f} | "
                f"{'-' if cost is None else f'{cost:+.1%}'} | {grown:.2f} | {root:.2f} | {log:.2f} | {g.exponent:.2f} "
                f"| {most} |"
            )
    return "\n".join(text)


def _chart(family: str, found: Sequence[Growth]) -> str:
    """Series, and the laws drawn from the first point of the lowest series."""
    start_n, start = min((g.points[0] for g in found), key=lambda p: p[1])
    sizes = sorted({n for g in found for n, _ in g.points if n >= start_n})
    laws = {"√n": [(n, start * math.sqrt(n / start_n)) for n in sizes]}
    if start_n > 1:
        laws["log n"] = [(n, start * math.log(n) / math.log(start_n)) for n in sizes]
    note = "Dashed: what grows as √n and as log n from the smallest point on."
    return loglog_chart(
        f"Growth of the peak: {family}", note, "n", "peak, MB", {g.method: g.points for g in found}, laws
    )
