"""One model's picture: peak against extra cost, by FLOPs and by modelled time, with all figures listed below."""

from __future__ import annotations

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from page import text
from page.rows import picked
from page.style import BLUE, GREY, INK, ORANGE, RC, RED, SOFT, svg, titled
from rekindle.errors import UsageError

FARTHEST_SHARE = 0.6  # marks of a larger extra cost stand at the right edge
NO_PLAN = "#eef1f4"  # the colour below the certified line
TITLES = {"flops": "extra FLOPs (measured)", "seconds": "extra time (modelled)"}
KINDS = ("plain", "tool", "auto", "solver")
MARKS = {  # what PyTorch brings; the four budgets of torch.compile share a mark
    "checkpoint-blocks": "s", "checkpoint-sequential": "D", "selective-matmul": "v", "compile": "^",
}  # fmt: skip
WIDE, TOP, PANEL, BELOW, LINE, FOOT = (
    9.6,
    1.2,
    3.2,
    1.0,
    0.165,
    0.2,
)  # inches; LINE: from one line of figures to the next


def kind(rows: pd.DataFrame) -> pd.Series:
    """Of each row: "plain", "auto", "solver" (another solver) or "tool" (a way that PyTorch brings)."""
    found = pd.Series("tool", index=rows.index)
    found[rows["solver"].notna()] = "solver"
    found[rows["solver_name"] == "auto"] = "auto"
    found[rows["method"] == "plain"] = "plain"
    return found


def points(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """One line per method that ran and whose cost is known: method, kind, share of the plain peak, and extra cost.

    Of rows of one method planned in different costs, the one planned in this measure counts.
    """
    found = picked(rows, measure)
    found = found[found["ran"] & found[f"extra_{measure}"].notna() & found["share"].notna()]
    return found.assign(kind=kind(found), extra=found[f"extra_{measure}"])[["method", "kind", "share", "extra"]]


def staircase(found: pd.DataFrame) -> pd.DataFrame:
    """The points with a smaller share than every cheaper point, cheapest first."""
    ordered = found.sort_values(["extra", "share"], kind="stable")
    return ordered[ordered["share"] < ordered["share"].cummin().shift(fill_value=float("inf"))]


def floors(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Certified steps, cheapest first: no schedule up to that extra cost has a smaller share of the plain peak.

    A row's bound holds for every extra cost up to its own, in the cost that it was planned in.
    """
    same = rows[rows["ran"] & (rows["bound_mb"] > 0) & (rows["cost"].fillna("flops") == measure)]
    found = pd.DataFrame({
        "extra": same["overhead"].fillna(same[f"extra_{measure}"]), "share": same["bound_mb"] / same["plain_peak_mb"],
    }).dropna()  # fmt: skip
    dearest_first = found.sort_values(["extra", "share"], ascending=False, kind="stable")
    higher = dearest_first["share"] > dearest_first["share"].cummax().shift(fill_value=0.0)
    return dearest_first[higher][::-1]


def frontier(rows: pd.DataFrame) -> Figure:
    """The picture of one model's rows.

    Raises
    ------
    UsageError : no row of the model ran, or its plain peak is unknown.
    """
    panels = {m: p for m in TITLES if not (p := points(rows, m)).empty}
    if not panels:
        raise UsageError("a picture needs at least one row that ran, and the plain peak")
    if "seconds" in panels and (panels["seconds"]["kind"] == "plain").all():
        del panels["seconds"]
    listed = _methods(rows)
    lines = -(-len(listed) // 2)
    high = TOP + PANEL + BELOW + LINE * lines + FOOT
    first = rows.iloc[0]
    batch = "" if pd.isna(first["batch"]) else f", batch {first['batch']:g}"
    with plt.rc_context(RC):
        figure = plt.figure(figsize=(WIDE, high))
        titled(
            figure, f"{first['model']}{batch}: memory against extra cost",
            f"Plain step: {text.mb(first['plain_peak_mb'])} MB of activations",
        )  # fmt: skip
        most = 1.04 * min(1.25, max(1.0, *(p["share"].max() for p in panels.values())))
        for i, (measure, found) in enumerate(panels.items()):
            part = (WIDE - 1.15 - 0.55 * (len(panels) - 1)) / len(panels)
            left = 0.85 + i * (part + 0.55)
            axes = figure.add_axes((left / WIDE, 1 - (TOP + PANEL) / high, part / WIDE, PANEL / high))
            _panel(axes, found, floors(rows, measure), most)
            axes.set_xlabel(TITLES[measure])
            axes.set_ylabel("peak, share of the plain step's" if i == 0 else "")
            if i == 0:
                _legend(figure, axes, high)
        _figures(figure, listed, panels, high)
    return figure


def frontier_svg(rows: pd.DataFrame) -> str:
    """`frontier` as an SVG document."""
    return svg(frontier(rows))


def _methods(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """(method, kind) of the methods that ran, in the order of the list below the panels."""
    ran = rows[rows["ran"]].drop_duplicates("method")
    found = pd.DataFrame({"method": ran["method"], "kind": kind(ran)})
    rank = found["kind"].map(KINDS.index)
    name = found["method"].where(found["kind"] == "solver", "")
    found = found.assign(rank=rank, name=name).sort_values(["rank", "name"], kind="stable")
    return list(zip(found["method"], found["kind"], strict=True))


def _panel(axes: Axes, found: pd.DataFrame, steps: pd.DataFrame, top: float) -> None:
    most = min(FARTHEST_SHARE, max(0.1, 1.06 * found["extra"].max()))
    least = min(0.0, 1.1 * found["extra"].min()) - 0.02 * most
    axes.set_xlim(least, most)
    axes.set_ylim(0, top)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=None, symbol=" %"))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    if not steps.empty:  # each step reaches from the one before it to its own extra cost
        x = [least, *steps["extra"].clip(lower=0.0)]
        y = [*steps["share"], steps["share"].iloc[-1]]
        axes.fill_between(x, y, step="post", color=NO_PLAN, linewidth=0)
        axes.step(x, y, where="post", color=RED, linewidth=1.1, dashes=(4, 2.5), label="certified: no plan below")
    stairs = staircase(found[found["kind"] == "auto"])
    if not stairs.empty:
        x = [*stairs["extra"].clip(upper=most), most]
        y = [*stairs["share"], stairs["share"].iloc[-1]]
        axes.step(x, y, where="post", color=BLUE, linewidth=1.6)
    style = {"clip_on": False, "markeredgecolor": "white", "markeredgewidth": 0.6, "linestyle": "none"}

    def draw(these: pd.DataFrame, label: str, mark: str, colour: str, size: float, over: int) -> None:
        if not these.empty:
            x, y = these["extra"].clip(upper=most), these["share"].clip(upper=top)
            axes.plot(x, y, mark, color=colour, markersize=size, zorder=over, label=label, **style)

    draw(found[found["kind"] == "plain"], "plain step", "o", INK, 7, 6)
    draw(found[found["kind"] == "auto"], "auto", "o", BLUE, 5, 5)
    draw(found[found["kind"] == "solver"], "other solvers", "o", GREY, 5, 3)
    for tool, mark in MARKS.items():
        mine = found[(found["kind"] == "tool") & found["method"].str.startswith(tool)]
        label = "compile, 4 budgets" if tool == "compile" else tool
        draw(mine, label, mark, ORANGE, 6, 4)


def _legend(figure: Figure, axes: Axes, high: float) -> None:
    """The meaning of the marks, in one row above the panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0.2 / WIDE, 1 - 0.66 / high), ncols=len(labels),
        fontsize=7.6, handletextpad=0.4, columnspacing=1.3, borderaxespad=0, borderpad=0.3, handlelength=1.6,
    )  # fmt: skip


def _figures(
    figure: Figure, listed: list[tuple[str, str]], panels: dict[str, pd.DataFrame], high: float
) -> None:  # fmt: skip
    """Every method with its figures, in two columns below the panels."""
    lines = -(-len(listed) // 2)
    by_method = {m: p.set_index("method") for m, p in panels.items()}
    heads = {"flops": "FLOPs", "seconds": "time"}
    begin = TOP + PANEL + BELOW - 0.22

    def write(x: float, y: float, words: str, colour: str = INK, **more: str) -> None:
        figure.text(x / WIDE, 1 - y / high, words, color=colour, fontsize=7.8, **more)

    for part in range(2 if len(listed) > 1 else 1):
        left = 0.3 + part * (WIDE - 0.3) / 2
        write(left, begin, "method", SOFT)
        places = {m: left + 2.35 + 1.22 * i for i, m in enumerate(panels)}
        for m, x in places.items():
            write(x, begin, "peak", SOFT, ha="right")
            write(x + 0.6, begin, heads[m], SOFT, ha="right")
        for i, (method, of) in enumerate(listed[part * lines : (part + 1) * lines], 1):
            y = begin + 0.03 + LINE * i
            colour = {"auto": BLUE, "tool": ORANGE}.get(of, INK)
            write(left, y, method, colour)
            for m, x in places.items():
                known = method in by_method[m].index
                share, extra = by_method[m].loc[method, ["share", "extra"]] if known else (None, None)
                write(x, y, text.percent(share), ha="right")
                write(x + 0.6, y, text.formatted(extra, "+.1%" if extra is None or extra < 1 else "+.0%"), ha="right")
