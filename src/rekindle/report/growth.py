"""How the peak grows with depth and length: the suite "deep", against sqrt(n) and log(n)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..bench.methods import parse
from .loglog import exponent, loglog_chart
from .markdown import plus, slug, table
from .rows import Row, by_model, extra, peak, pick, plain_mb, solver_of

# what is published for deep chains; auto joins them, but not within the memory of any other method
METHODS = ("plain", "chen-sqrt", "hong-exact", "chen-recursive", "revolve", "bptt", "rotor")
CHEN = (
    48.0,
    7.0,
    0.30,
)  # GB plain, GB planned, extra time: ResNet-1000 at batch 32; Chen et al. 2016, arXiv:1604.06174
GB = 1e9 / 2**20  # in MB of rows
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
    out = []
    for family, sizes in _families(rows).items():
        auto = {r["method"]: None for mine in sizes.values() for r in mine if _by_auto(r)}
        for method in (*METHODS, *sorted(auto, reverse=True)):
            picked = [(n, pick(mine, method, "flops")) for n, mine in sorted(sizes.items())]
            ran = [(n, r) for n, r in picked if r is not None and r["status"] == "ok"]
            if len(ran) >= 2:
                points = tuple((float(n), float(r["peak_mb"])) for n, r in ran)
                out.append(Growth(family, method, points, tuple((float(n), extra(r, "flops")) for n, r in ran)))
    return out


def _by_auto(row: Row) -> bool:
    """Whether the row is auto's, for a goal of its own or within the memory of one of METHODS."""
    asked = parse(row["method"])
    return asked is not None and asked.solver == "auto" and asked.like in (None, *METHODS)


def _families(rows: Sequence[Row]) -> dict[str, dict[int, list[Row]]]:
    """Family -> n -> the rows of that model, of the suite deep."""
    found: dict[str, dict[int, list[Row]]] = {}
    for (suite, model), mine in by_model(rows).items():
        named = re.fullmatch(r"(.*?)[-_@ ]?(\d+)", model)
        if suite == "deep" and named and named[1] and int(named[2]) > 0:
            found.setdefault(named[1], {})[int(named[2])] = mine
    return found


def growth_part(rows: Sequence[Row], folder: str, pictures: dict[str, str]) -> str:
    """The page's part on the suite deep; adds its pictures. Empty where no family has two sizes."""
    found = growths(rows)
    chen = _chen(rows)
    if not found:
        return f"## A thousand layers\n\n{chen}" if chen else ""
    text = [
        "## Growth with depth and length",
        "",
        "n is the number of layers or of unrolled steps. Growth is told over the last factor of "
        f"{SPAN} in n, as far as rows reach; the exponent is that of the power law fitted to all points.",
    ]
    for family in dict.fromkeys(g.family for g in found):
        mine = [g for g in found if g.family == family]
        name = f"growth-{slug(family)}.svg"
        pictures[name] = _chart(family, mine)
        text += ["", f"### {family}", "", f"![Peak against n: {family}]({folder}/{name})", ""]
        text += [
            "| method | n | peak MB | extra FLOPs | growth | √n grows | log n grows | exponent | at most as |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---|",
        ]
        for g in mine:
            (a, low), (b, high) = g.ends
            grown, root, log = g.factors
            costs = [c for n, c in g.extra if a <= n <= b and c is not None]
            laws = {"log n": log, "√n": root, "n": b / a}
            most = next((law for law, by in laws.items() if grown <= by * (1 + 1e-9)), "more than n")
            text.append(
                f"| {g.method} | {a:,.0f} to {b:,.0f} | {low:,.1f} to {high:,.1f} | "
                f"{_range(costs)} | {grown:.2f} | {root:.2f} | {log:.2f} | {g.exponent:.2f} "
                f"| {most} |"
            )
    return "\n".join([*text, *(["", "### A thousand layers", "", chen] if chen else [])])


def _range(costs: Sequence[float]) -> str:
    least, most = min(costs, default=None), max(costs, default=None)
    if least is None or most is None:
        return "-"
    return f"{most:+.1%}" if most - least < 0.0015 else f"{least:+.1%} to {most:+.1%}"


def _chen(rows: Sequence[Row]) -> str:
    """ResNet-1000 within the extra time of the paper, beside what the paper has."""
    mine = _families(rows).get("resnet", {}).get(1000)
    plain = None if mine is None else plain_mb(mine)
    if mine is None or plain is None:
        return ""
    sizes = [
        (size, cost, r)
        for r in mine
        if solver_of(r) == "auto" and (cost := extra(r, "seconds")) is not None and (size := peak(r)) is not None
        if cost <= CHEN[2]
    ]
    lines = [["", "plain, GB", "planned, GB", "extra time"]]
    lines.append(["Chen et al., measured", f"{CHEN[0]:g}", f"{CHEN[1]:g}", f"{CHEN[2]:+.0%}"])
    size, cost, row = min(sizes, key=lambda s: s[:2], default=(None, None, None))
    name = "auto" if row is None else row["method"]
    planned = "no row within that time" if size is None else f"{size / GB:.2f}"
    lines.append([f"ours, {name}, modelled", f"{plain / GB:.1f}", planned, plus(cost)])
    text = (
        "The 1000-layer ResNet of Chen et al. (2016) at batch 32; GB is 10^9 bytes. Ours are activations, as everywhere on "
        "this page; parameters and their gradients come on top."
    )
    return f"{text}\n\n{table(lines)}"


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
