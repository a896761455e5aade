"""The README's picture: one model's memory against extra time, five methods labelled and all others grey."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from page.frontier import points, staircase
from page.style import RC
from rekindle.errors import UsageError

MEASURE = "seconds"
MB_PER_GIB = 1024
MOST_EXTRA = 0.55  # dearer rows are left out of the picture


@dataclass(frozen=True)
class Look:
    """Colours on a light or a dark ground; the ground itself is left transparent."""

    ink: str
    soft: str
    grid: str
    ours: str
    tool: str
    grey: str


LOOKS = {
    "light": Look("#1f2933", "#52606d", "#e3e8ed", "#c4560a", "#1d5b96", "#aab4be"),
    "dark": Look("#eef2f6", "#aeb9c4", "#343c46", "#ff9d4d", "#7fb8ee", "#67727e"),
}


@dataclass(frozen=True)
class Label:
    """One labelled method: its name in the picture, its mark, and where its label stands, in points from the mark."""

    name: str
    mark: str
    dx: float
    dy: float
    align: str = "left"


OURS = "Rekindle"
LABELS = {
    "checkpoint-blocks": Label("torch.utils.checkpoint, each block", "s", 9, 2),
    "checkpoint-sequential": Label("checkpoint_sequential", "D", 9, -4),
    "selective-matmul": Label("selective checkpointing", "v", 0, 15, "center"),
}
PLAIN = Label("plain step", "o", 2, 20, "right")


def hero(rows: pd.DataFrame, look: Look) -> Figure:
    """The picture of one model's rows.

    Raises
    ------
    UsageError : the plain step or a row of `auto` is missing.
    """
    plain_gib = rows["plain_peak_mb"].iloc[0] / MB_PER_GIB
    found = points(rows, MEASURE).assign(gib=lambda p: p["share"] * plain_gib)
    found = found[found["extra"] <= MOST_EXTRA]
    if not {"plain", "auto"} <= set(found["kind"]):
        raise UsageError("the picture needs the plain step and a row of auto, both with their modelled time")
    first = rows.iloc[0]
    with plt.rc_context(
        RC | {"svg.fonttype": "path", "font.size": 10, "text.color": look.ink, "grid.color": look.grid}
    ):
        figure = plt.figure(figsize=(8.4, 4.5), facecolor="none")
        axes = figure.add_axes((0.085, 0.125, 0.89, 0.70), facecolor="none")
        _frame(axes, look, plain_gib)
        _draw(axes, found, look)
        name = f"{first['model'].replace('resnet', 'ResNet-')}, batch {first['batch']:g}"
        figure.text(0.018, 0.935, f"{name}: memory against extra time", fontsize=13, fontweight="bold", color=look.ink)
        figure.text(0.018, 0.88, "One training step. Lower and further left is better.", color=look.soft)
    return figure


def _frame(axes: Axes, look: Look, plain_gib: float) -> None:
    axes.set_xlim(0, 1.02 * plain_gib)
    axes.set_ylim(-0.02, MOST_EXTRA)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    axes.set_xlabel("activation memory at the peak, GiB (measured)", color=look.soft)
    axes.set_ylabel("extra time (modelled)", color=look.soft)
    axes.tick_params(colors=look.soft)
    for side in axes.spines.values():
        side.set_color(look.soft)


def _draw(axes: Axes, found: pd.DataFrame, look: Look) -> None:
    def marks(these: pd.DataFrame, mark: str, colour: str, size: float, over: int) -> None:
        axes.plot(these["gib"], these["extra"], mark, color=colour, markersize=size, zorder=over, clip_on=False)

    def label(at: pd.Series, words: Label, colour: str, weight: str = "normal") -> None:
        axes.annotate(
            words.name, (at["gib"], at["extra"]), (words.dx, words.dy), textcoords="offset points", color=colour,
            ha=words.align, va="center", fontweight=weight, zorder=9,
        )  # fmt: skip

    solvers = found[found["kind"] == "solver"]
    marks(solvers, "o", look.grey, 4, 2)
    stairs = staircase(found[found["kind"] == "auto"]).sort_values("gib")
    axes.step(stairs["gib"], stairs["extra"], where="post", color=look.ours, linewidth=2.2, zorder=4)
    marks(stairs, "o", look.ours, 6, 5)
    for method, words in LABELS.items():
        mine = found[(found["kind"] == "tool") & found["method"].str.startswith(method) & (found["share"] < 1)]
        if not mine.empty:
            marks(mine, words.mark, look.tool, 8, 6)
            label(mine.sort_values("gib").iloc[-1], words, look.tool)
    plain = found[found["kind"] == "plain"]
    marks(plain, "o", look.ink, 8, 6)
    label(plain.iloc[0], PLAIN, look.ink)
    lowest = stairs.iloc[len(stairs) // 4]
    label(lowest, Label(OURS, "o", -8, -14, "right"), look.ours, "bold")
    if not solvers.empty:
        dearest = solvers.sort_values("extra").iloc[-1]
        label(dearest, Label("grey: other published solvers", "o", 9, 8), look.soft)
