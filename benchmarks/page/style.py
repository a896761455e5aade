"""The look of the page's pictures, and how they are written: calm, on a light ground, and equal on every run."""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

INK, SOFT, GRID = "#24303c", "#5c6b7a", "#e3e8ed"
BLUE, ORANGE, GREY, RED = "#2d5d8f", "#e8710a", "#9aa8b5", "#c92a2a"
RC: dict[str, Any] = {
    "svg.hashsalt": "rekindle", "svg.fonttype": "none",
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 9, "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": SOFT, "axes.labelcolor": SOFT, "axes.linewidth": 0.8, "axes.grid": True, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False,
    "grid.color": GRID, "grid.linewidth": 0.8,
    "xtick.color": SOFT, "ytick.color": SOFT, "xtick.major.size": 0, "ytick.major.size": 0,
    "xtick.minor.size": 0, "ytick.minor.size": 0,
    "legend.frameon": False, "figure.facecolor": "white", "savefig.facecolor": "white",
}  # fmt: skip


def svg(figure: Figure) -> str:
    """The figure as an SVG document without date or version; closes the figure."""
    out = io.StringIO()
    with plt.rc_context(RC):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    text = out.getvalue()
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)


def titled(figure: Figure, title: str, subtitle: str) -> None:
    """Write a title and a line below it at the top left, 0.3 inch from the edges."""
    wide, high = figure.get_size_inches()
    figure.text(0.3 / wide, 1 - 0.34 / high, title, fontsize=13, fontweight="bold")
    figure.text(0.3 / wide, 1 - 0.58 / high, subtitle, color=SOFT)


def log_axes(axes: Axes, x_name: str, y_name: str) -> None:
    """Logarithmic axes with plain numbers at 1, 2 and 5 times powers of ten, or only at powers of ten over long ranges."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if high / low < 3000 else (1,), numticks=20))
        axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(x_name)
    axes.set_ylabel(y_name)
