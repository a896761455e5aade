"""One model's picture: extra cost against peak, by FLOPs and by modelled time, with all figures listed below.

Memory is across and extra cost upwards, as in every picture of the project. Five kinds of methods have words beside their
marks; all others are grey.
"""

from __future__ import annotations

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from page import text
from page.rows import picked
from page.style import BLUE, GREY, INK, ORANGE, RC, RED, SOFT, svg, titled
from page.words import Words
from rekindle.errors import UsageError

FARTHEST_SHARE = 0.6  # marks of a larger extra cost stand at the upper edge
NO_PLAN = "#eef1f4"  # the colour beyond the certified line
TITLES = {"flops": "extra FLOPs (measured)", "seconds": "extra time (modelled)"}
KINDS = ("plain", "tool", "auto", "solver")
TOOLS = {  # what PyTorch brings, and the marks; the budgets of torch.compile share one
    "checkpoint-blocks": "s", "compile": "^", "selective-matmul": "v", "checkpoint-sequential": "D",
    "linear-cross-entropy": "P", "auto-chunker": "X",
}  # fmt: skip
LABELLED = 5  # kinds of methods with words in the picture; the first tools of `TOOLS` that ran, beside plain and auto
# inches; GAP: between two panels; LINE: from one line of figures to the next
WIDE, TOP, PANEL, BELOW, LINE, FOOT, GAP = 9.6, 0.85, 3.2, 1.0, 0.165, 0.2, 0.85


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

    A row's bound holds for every extra cost up to its own, in the cost that it was planned in. The bound of a rewritten step is
    none of the captured step, of which all other methods are.
    """
    captured = (rows["rewrites"] == 0) | rows["rewrites"].isna() & rows["slices"].isna()  # older rows have neither
    same = rows[captured & rows["ran"] & (rows["bound_mb"] > 0) & (rows["cost"].fillna("flops") == measure)]
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
            part = (WIDE - 1.15 - GAP * (len(panels) - 1)) / len(panels)
            left = 0.85 + i * (part + GAP)
            axes = figure.add_axes((left / WIDE, 1 - (TOP + PANEL) / high, part / WIDE, PANEL / high))
            _panel(axes, found, floors(rows, measure), most)
            axes.set_xlabel("peak, share of the plain step's")
            axes.set_ylabel(TITLES[measure])
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


def _panel(axes: Axes, found: pd.DataFrame, steps: pd.DataFrame, right: float) -> None:
    most = min(FARTHEST_SHARE, max(0.1, 1.06 * found["extra"].max()))
    least = min(0.0, 1.1 * found["extra"].min()) - 0.02 * most
    axes.set_xlim(0, right)
    axes.set_ylim(least, most)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None, symbol=" %"))
    words = Words(axes, found["share"].clip(upper=right), found["extra"].clip(upper=most))
    if not steps.empty:
        words.keep_off(*_no_plan(axes, steps, least))
    stairs = staircase(found[found["kind"] == "auto"])[::-1]  # from the smallest peak on
    if not stairs.empty:
        x = [*stairs["share"], right]
        y = [*stairs["extra"].clip(upper=most), stairs["extra"].iloc[-1]]
        axes.step(x, y, where="post", color=BLUE, linewidth=1.6)
        words.keep_off([x[0], *(b for b in x[1:] for _ in range(2))], [*(b for b in y[:-1] for _ in range(2)), y[-1]])

    def draw(these: pd.DataFrame, mark: str, colour: str, size: float, over: int) -> None:
        x, y = these["share"].clip(upper=right), these["extra"].clip(upper=most)
        style = {"clip_on": False, "markeredgecolor": "white", "markeredgewidth": 0.6, "linestyle": "none"}
        axes.plot(x, y, mark, color=colour, markersize=size, zorder=over, **style)

    labelled: list[tuple[pd.DataFrame, str, str]] = [
        (found[found["kind"] == "plain"], "plain step", INK),
        (stairs, "auto", BLUE),
    ]
    draw(found[found["kind"] == "solver"], "o", GREY, 4.5, 3)
    for tool, mark in TOOLS.items():
        mine = found[(found["kind"] == "tool") & found["method"].str.startswith(tool)]
        if mine.empty:
            continue
        named = len(labelled) < LABELLED
        draw(mine, mark, ORANGE if named else GREY, 6, 5 if named else 4)
        if named:
            several = " (several budgets)" if len(mine) > 1 else ""
            labelled.append((mine, f"{tool}{several}", ORANGE))
    draw(found[found["kind"] == "auto"], "o", BLUE, 5, 6)
    draw(found[found["kind"] == "plain"], "o", INK, 7, 7)
    for these, label, colour in labelled:
        words.beside(these["share"].clip(upper=right), these["extra"].clip(upper=most), label, colour)


def _no_plan(axes: Axes, steps: pd.DataFrame, least: float) -> tuple[list[float], list[float]]:
    """Draw the certified line: up to the extra cost of each step, no plan holds less than its share. Gives its corners."""
    x, y = [steps["share"].iloc[0]], [least]
    for share, extra in zip(steps["share"], steps["extra"].clip(lower=0.0), strict=True):
        x += [share, share]
        y += [y[-1], extra]
    axes.fill([0, *x, 0], [least, *y, y[-1]], color=NO_PLAN, linewidth=0)
    axes.plot(x, y, color=RED, linewidth=1.1, dashes=(4, 2.5))
    low, high = axes.get_ylim()
    axes.text(
        0.012, 0.5 * (max(low, 0) + min(y[-1], high)) / (high - low) - low / (high - low),
        "certified: no plan here without rewrites", color=RED, fontsize=7.6, rotation=90, va="center", transform=axes.transAxes,
    )  # fmt: skip
    return x, y


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
