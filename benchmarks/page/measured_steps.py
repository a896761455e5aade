"""The README's picture of measured steps: peak against time, on a GPU and on a CPU, compiled and not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from page.hero import Look
from page.style import RC

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """Methods that are drawn alike. colour : a field of `Look`. is_line : a line joins them."""

    name: str
    mark: str
    colour: str
    is_line: bool = False


KINDS = (
    Kind("eager", "o", "ink"),
    Kind("eager, checkpoint per block", "s", "tool"),
    Kind("torch.compile", "^", "tool"),
    Kind("its checkpoints and budgets", "v", "tool"),
    Kind("Rekindle", "o", "ours", True),
    Kind("Rekindle, compile=True", "D", "ours", True),
)


@dataclass(frozen=True)
class Point:
    """One method's step. peak, seconds : as a share of the plain eager step's."""

    kind: str
    peak: float
    seconds: float


def on_gpu(rows: Sequence[Row], model: str) -> list[Point]:
    """The points of one model in `*-gpu-peers-*.jsonl`. Peaks are of activations, times of the fastest step."""
    mine = {r["method"]: r for r in rows if r["model"] == model}
    plain = mine["eager"]
    names = {"eager": KINDS[0], "ckpt": KINDS[1], "compile": KINDS[2]}

    def kind(method: str) -> Kind:
        return names.get(method) or (KINDS[4] if method.startswith("rk:") else KINDS[3])

    return [
        Point(kind(k).name, (r["peak"] - r["base"]) / (plain["peak"] - plain["base"]), r["ms_min"] / plain["ms_min"])
        for k, r in mine.items()
    ]


def on_cpu(rows: Sequence[Row], model: str) -> list[Point]:
    """The points of one model in `*-compiled-steps.jsonl`."""
    names = {"eager": KINDS[0], "eager, checkpoint per block": KINDS[1], "compile": KINDS[2]}

    def kind(method: str) -> Kind:
        ours = KINDS[4] if method.startswith("ours, eager") else KINDS[5]
        return names.get(method) or (ours if method.startswith("ours") else KINDS[3])

    return [Point(kind(r["method"]).name, r["peak_of_eager"], r["of_eager"]) for r in rows if r["model"] == model]


def measured(panels: Mapping[str, Sequence[Point]], look: Look) -> Figure:
    """The picture. panels : title -> points."""
    with plt.rc_context(
        RC | {"svg.fonttype": "path", "font.size": 10, "text.color": look.ink, "grid.color": look.grid}
    ):
        figure, every = plt.subplots(1, len(panels), figsize=(8.4, 4.3), sharey=True, facecolor="none")
        for axes, (title, points) in zip(every, panels.items(), strict=True):
            _panel(axes, title, points, look)
        every[0].set_ylabel("time of a step, of eager's", color=look.soft)
        handles, names = every[-1].get_legend_handles_labels()
        figure.legend(handles, names, loc="lower center", ncol=3, labelcolor=look.soft)
        figure.text(0.018, 0.94, "One training step, measured", fontsize=13, fontweight="bold", color=look.ink)
        figure.text(0.018, 0.89, "Lower and further left is better.", color=look.soft)
        figure.subplots_adjust(left=0.085, right=0.98, top=0.78, bottom=0.27, wspace=0.08)
    return figure


def _panel(axes: Axes, title: str, points: Sequence[Point], look: Look) -> None:
    axes.set_facecolor("none")
    axes.set_title(title, fontsize=10, color=look.ink, loc="left")
    axes.set_xlim(0, 1.06)
    axes.set_ylim(0.35, 1.4)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    axes.set_xlabel("activation memory at the peak, of eager's", color=look.soft)
    axes.tick_params(colors=look.soft)
    for side in axes.spines.values():
        side.set_color(look.soft)
    for kind in KINDS:
        found = sorted((p.peak, p.seconds) for p in points if p.kind == kind.name)
        line = "-" if kind.is_line else ""
        axes.plot(
            *zip(*found, strict=True) if found else ([], []), line + kind.mark, color=getattr(look, kind.colour),
            markersize=7, linewidth=1.8, zorder=5, markerfacecolor="none" if kind.name == "Rekindle" else None,
            label=kind.name,
        )  # fmt: skip
