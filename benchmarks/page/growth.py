"""The page's part on growth of the peak with depth and length: the suite deep, against sqrt(n) and log(n)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from page import text
from page.rows import picked
from page.style import BLUE, GREY, INK, ORANGE, RC, log_axes, svg, titled
from rekindle.bench.methods import parse

# published methods for deep chains; auto's rows join them unless they answer for the memory of any other method
METHODS = ("plain", "chen-sqrt", "hong-exact", "chen-recursive", "revolve", "bptt", "rotor")
GB = 1e9 / 2**20  # in MB of rows
SPAN = 8  # growth is stated over the last factor of eight in n, as far as rows reach


@dataclass(frozen=True)
class Paper:
    """ResNet-1000 at batch 32 in Chen et al. 2016, arXiv:1604.06174: sizes in GB, extra time as a fraction."""

    plain_gb: float = 48.0
    planned_gb: float = 7.0
    extra_time: float = 0.30


CHEN = Paper()


def deep(t: pd.DataFrame) -> pd.DataFrame:
    """Rows of the suite deep with their family and size: "lstm-512" has family "lstm" and n = 512."""
    rows = t[t["suite"] == "deep"]
    named = rows["model"].str.extract(r"^(?P<family>.+?)[-_@ ]?(?P<n>\d+)$")
    rows = rows.assign(family=named["family"], n=named["n"].astype(float))
    return rows[rows["n"] > 0]


def growths(t: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """(family, method) -> its rows by n, for methods that ran at two sizes or more."""
    found: dict[tuple[str, str], pd.DataFrame] = {}
    for family, mine in deep(t).groupby("family", sort=False):
        auto = sorted({m for m in mine["method"] if _by_auto(m)}, reverse=True)
        ran = picked(mine, "flops").query("ran")
        for method in (*METHODS, *auto):
            of = ran[ran["method"] == method].sort_values("n")
            if len(of) >= 2:
                found[str(family), method] = of
    return found


def _by_auto(method: str) -> bool:
    """Whether auto plans the method, for a goal of its own or within the memory of one of METHODS."""
    asked = parse(method)
    return asked is not None and asked.solver == "auto" and asked.like in (None, *METHODS)


def exponent(of: pd.DataFrame) -> float:
    """b of the power law peak ~ n^b: least squares on the logarithms."""
    return statistics.linear_regression(of["n"].map(math.log), of["peak_mb"].map(math.log)).slope


def ends(of: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """The rows between which growth is stated: the first one within a factor of SPAN of the last, and the last."""
    last = of.iloc[-1]
    return of[of["n"] * SPAN >= last["n"]].iloc[0], last


def factors(of: pd.DataFrame) -> dict[str, float]:
    """Between the ends, the growth of the peak, and of log n, √n and n."""
    first, last = ends(of)
    a, b = first["n"], last["n"]
    return {
        "peak": last["peak_mb"] / first["peak_mb"], "log n": math.log(b) / math.log(a) if a > 1 else math.inf,
        "√n": math.sqrt(b / a), "n": b / a,
    }  # fmt: skip


def growth_part(t: pd.DataFrame, folder: str, pictures: dict[str, str]) -> str:
    """The page's part on the suite deep; adds its pictures. Without a family of two sizes, only the thousand layers."""
    found = growths(t)
    chen = _chen(t)
    if not found:
        return f"## A thousand layers\n\n{chen}" if chen else ""
    parts = [
        "## Growth with depth and length", "",
        f"n is the number of layers or of unrolled steps. Growth is stated over the last factor of {SPAN} in n, as far as rows "
        "reach; the exponent belongs to the power law fitted to all points.",
    ]  # fmt: skip
    for family in dict.fromkeys(family for family, _ in found):
        mine = {method: of for (f, method), of in found.items() if f == family}
        name = f"growth-{text.slug(family)}.svg"
        pictures[name] = svg(growth_chart(family, mine))
        parts += ["", f"### {family}", "", f"![Peak against n: {family}]({folder}/{name})", ""]
        parts.append(text.table([_line(method, of) for method, of in mine.items()], texts=("at most as",)))
    return "\n".join([*parts, *(["", "### A thousand layers", "", chen] if chen else [])])


def _line(method: str, of: pd.DataFrame) -> dict[str, str]:
    first, last = ends(of)
    by = factors(of)
    costs = of.loc[of["n"].between(first["n"], last["n"]), "extra_flops"].dropna().tolist()
    most = next((law for law in ("log n", "√n", "n") if by["peak"] <= by[law] * (1 + 1e-9)), "more than n")
    return {
        "method": method, "n": f"{first['n']:,.0f} to {last['n']:,.0f}",
        "peak MB": f"{first['peak_mb']:,.1f} to {last['peak_mb']:,.1f}", "extra FLOPs": _range(costs),
        "growth": text.ratio(by["peak"]), "√n grows": text.ratio(by["√n"]), "log n grows": text.ratio(by["log n"]),
        "exponent": text.ratio(exponent(of)), "at most as": most,
    }  # fmt: skip


def _range(costs: Sequence[float]) -> str:
    if not costs:
        return "-"
    least, most = min(costs), max(costs)
    return f"{most:+.1%}" if most - least < 0.0015 else f"{least:+.1%} to {most:+.1%}"


def _chen(t: pd.DataFrame) -> str:
    """ResNet-1000 within the extra time of the paper, beside the paper's figures."""
    rows = deep(t)
    mine = rows[(rows["family"] == "resnet") & (rows["n"] == 1000)]
    plain = mine["plain_peak_mb"].dropna()
    if plain.empty:
        return ""
    auto = mine[(mine["solver_name"] == "auto") & mine["ran"] & (mine["extra_seconds"] <= CHEN.extra_time)]
    ours = {"": "ours, auto, modelled", "plain, GB": f"{plain.iloc[0] / GB:.1f}",
            "planned, GB": "no row within that time", "extra time": "-"}  # fmt: skip
    if not auto.empty:
        best = auto.sort_values(["peak_mb", "extra_seconds"], kind="stable").iloc[0]
        ours |= {"": f"ours, {best['method']}, modelled", "planned, GB": f"{best['peak_mb'] / GB:.2f}",
                 "extra time": text.plus(best["extra_seconds"])}  # fmt: skip
    theirs = {"": "Chen et al., measured", "plain, GB": f"{CHEN.plain_gb:g}", "planned, GB": f"{CHEN.planned_gb:g}",
              "extra time": f"{CHEN.extra_time:+.0%}"}  # fmt: skip
    words = (
        "The 1000-layer ResNet of Chen et al. (2016) at batch 32; GB is 10^9 bytes. Our figures are activations, as "
        "everywhere on "
        "this page; parameters and their gradients come on top."
    )
    return f"{words}\n\n{text.table([theirs, ours])}"


COLOURS = ("#2b8a3e", "#7b4fa3", "#a61e4d", "#0b7285", "#b08900", "#8d6e63", "#5c7cfa")


def growth_chart(family: str, found: Mapping[str, pd.DataFrame]) -> Figure:
    """A line per method, and the laws √n and log n drawn from the first point of the lowest line."""
    with plt.rc_context(RC):
        figure, axes = plt.subplots(figsize=(9.6, 4.9))
        figure.subplots_adjust(left=0.085, right=0.76, top=0.84, bottom=0.11)
        titled(
            figure, f"{family}: growth of the peak",
            "A line of auto and of the method whose memory it was given share a colour; auto's are solid.",
        )  # fmt: skip
        colours = {"plain": INK} | dict(zip([m for m in METHODS if m != "plain"], COLOURS, strict=False))
        start = min((of.iloc[0] for of in found.values()), key=lambda r: r["peak_mb"])
        sizes = sorted({n for of in found.values() for n in of["n"] if n >= start["n"]})
        laws = {"grows as √n": [math.sqrt(n / start["n"]) for n in sizes]}
        if start["n"] > 1:
            laws["grows as log n"] = [math.log(n) / math.log(start["n"]) for n in sizes]
        order = sorted(found, key=lambda m: -found[m]["peak_mb"].iloc[-1])
        for method in order:
            of, like = found[method], method.partition("=")[2]
            auto = method.startswith("auto")
            colour = colours.get(like or method, BLUE if auto else ORANGE)
            axes.plot(
                of["n"], of["peak_mb"], "-o" if auto or method == "plain" else "--o", color=colour, linewidth=1.5,
                markersize=4, markeredgecolor="white", markeredgewidth=0.5, label=method,
            )  # fmt: skip
        for (name, by), dashes in zip(laws.items(), ((1, 1.5), (4, 2, 1, 2)), strict=False):
            axes.plot(sizes, [start["peak_mb"] * x for x in by], color=GREY, linewidth=1.1, dashes=dashes, label=name)
        log_axes(axes, "n", "peak, MB")
        axes.set_xticks(sorted({n for of in found.values() for n in of["n"]}), minor=False)
        axes.xaxis.set_minor_locator(plt.NullLocator())
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.03), fontsize=8, handlelength=2.6, labelspacing=0.45)
    return figure
