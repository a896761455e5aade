"""A small SVG canvas: shapes, axis ticks, and one style for light and dark; and the time of a step as pictures show it.

Pictures need no scripts, fonts or network."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from html import escape as html_escape

import numpy as np

from ..model.graph import Graph
from ..model.judge import Simulation
from ..model.schedule import RUN, Schedule
from ..printed import printable
from ..saying.shares import EPS

# Selectors start at .rk, so that one document can hold several pictures and a page around them.
STYLE = """
.rk{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
.rk text,.rk tspan{font-size:13px}
.rk text{fill:#24303c}
.rk .paper{fill:#ffffff}
.rk .title{font-size:18px;font-weight:600}
.rk .head{font-size:14px;font-weight:600}
.rk .soft{fill:#5c6b7a}
.rk .small{font-size:12px}
.rk .then{font-weight:400;font-size:13px}
.rk .mark{font-weight:600}
.rk .halo{fill:none;stroke:#ffffff;stroke-width:4px;stroke-linejoin:round}
.rk .grid{stroke:#e3e8ed;stroke-width:1}
.rk .axis{stroke:#8795a3;stroke-width:1}
.rk .phase{stroke:#5c6b7a;stroke-width:1;stroke-dasharray:2 3}
.rk .base{fill:#cfd6dd}
.rk .area{fill:#6f9fd0}
.rk .again{fill:#f28e2b}
.rk .away{fill:#f3d5e3}
.rk .waits{fill:#7a1f4f}
.rk path.again,.rk path.waits{shape-rendering:crispEdges}
.rk .edge{fill:none;stroke:#2d5d8f;stroke-width:1.2;stroke-linejoin:round}
.rk .curve{fill:none;stroke:#2d5d8f;stroke-width:2.2;stroke-linejoin:round}
.rk .under{fill:#6f9fd0;fill-opacity:.16}
.rk .never{fill:#cfd6dd;fill-opacity:.55}
.rk .limit{stroke:#c92a2a;stroke-width:1.6;stroke-dasharray:7 4}
.rk .limit-text{fill:#c92a2a;font-weight:600}
.rk .dot{fill:#24303c;stroke:#ffffff;stroke-width:1.5}
.rk .point{fill:#2d5d8f;stroke:#ffffff;stroke-width:1.5}
@media (prefers-color-scheme:dark){
.rk text{fill:#e4e9ee}
.rk .paper{fill:#14191f}
.rk .soft{fill:#9aa8b5}
.rk .halo{stroke:#14191f}
.rk .grid{stroke:#2a323b}
.rk .axis{stroke:#6b7885}
.rk .phase{stroke:#9aa8b5}
.rk .base{fill:#3d4852}
.rk .area{fill:#3f78b3}
.rk .again{fill:#f79a3e}
.rk .away{fill:#4d2a3c}
.rk .waits{fill:#ffc2dd}
.rk .edge{stroke:#9cc4ec}
.rk .curve{stroke:#86b6e6}
.rk .under{fill:#3f78b3;fill-opacity:.22}
.rk .never{fill:#3d4852;fill-opacity:.55}
.rk .limit{stroke:#ff7b72}
.rk .limit-text{fill:#ff7b72}
.rk .dot{fill:#e4e9ee;stroke:#14191f}
.rk .point{fill:#86b6e6;stroke:#14191f}
}
""".strip()


def escape(text: str) -> str:
    """Text that is safe inside XML, which has no control characters: those are spelled out."""
    return html_escape(printable(text))


@dataclass
class Canvas:
    """Shapes in the order in which they are drawn. Coordinates are in pixels, y points down; `cls` is a class of `STYLE`."""

    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def text(
        self, x: float, y: float, text: str, cls: str = "", anchor: str = "start", *, then: str = "", turn: int = 0,
        halo: bool = False,
    ) -> None:  # fmt: skip
        """Draw one line of words.

        anchor : "start", "middle" or "end": the part of the words that stands at x.
        then : more words in a softer tone.
        turn : degrees, clockwise.
        halo : draw a rim in the colour of the paper, so that the words can be read on top of shapes.
        """
        turned = f' transform="rotate({turn} {n(x)} {n(y)})"' if turn else ""
        words = escape(text) + (f'<tspan dx="10" class="soft then">{escape(then)}</tspan>' if then else "")
        at = f'x="{n(x)}" y="{n(y)}" text-anchor="{anchor}"{turned}'
        if halo:  # drawn twice, since not every viewer knows paint-order
            self.parts.append(f'<text {at} class="{cls} halo" aria-hidden="true">{words}</text>')
        self.parts.append(f'<text {at} class="{cls}">{words}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, cls: str) -> None:
        self.parts.append(f'<line x1="{n(x1)}" y1="{n(y1)}" x2="{n(x2)}" y2="{n(y2)}" class="{cls}"/>')

    def rect(self, x: float, y: float, w: float, h: float, cls: str, more: str = "") -> None:
        self.parts.append(f'<rect x="{n(x)}" y="{n(y)}" width="{n(w)}" height="{n(h)}" class="{cls}"{more}/>')

    def path(self, d: str, cls: str, more: str = "") -> None:
        if d:
            self.parts.append(f'<path d="{d}" class="{cls}"{more}/>')

    def dot(self, x: float, y: float, cls: str = "dot", tip: str = "", radius: float = 4.5) -> None:
        inside = f"<title>{escape(tip)}</title>" if tip else ""
        self.parts.append(f'<circle cx="{n(x)}" cy="{n(y)}" r="{radius}" class="{cls}">{inside}</circle>')

    def render(self, title: str, description: str) -> str:
        """The SVG as text; a screen reader reads the title and the description."""
        body = "\n".join(self.parts)
        key = f"rk{zlib.crc32((title + body).encode('utf-8', 'backslashreplace')):08x}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="rk" role="img" aria-labelledby="{key}t {key}d" '
            f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}">\n'
            f'<title id="{key}t">{escape(title)}</title>\n<desc id="{key}d">{escape(description)}</desc>\n'
            f"<style>{STYLE}</style>\n"
            f'<rect class="paper" width="{self.width}" height="{self.height}" rx="8"/>\n{body}\n</svg>\n'
        )


def n(x: float) -> str:
    """A coordinate as text, to a tenth of a pixel."""
    return f"{x:.1f}".removesuffix(".0")


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """About `about` round numbers from low to high: multiples of 1, 2, 2.5 or 5 times a power of ten."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def byte_unit(most: float) -> tuple[str, int]:
    """(name, bytes) of the binary unit in which sizes up to `most` bytes read well."""
    for name, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if most >= 2 * size:
            return name, size
    return "B", 1


def number(x: float) -> str:
    """The number at a tick: "1,200" for 1200, "0.25" for 0.25."""
    return f"{x:,.0f}" if abs(x - round(x)) < 1e-9 else f"{x:,.4f}".rstrip("0")


_SCALES = {
    "seconds": (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)),
    "flops": (("PFLOPs", 1e15), ("TFLOPs", 1e12), ("GFLOPs", 1e9), ("MFLOPs", 1e6), ("FLOPs", 1.0)),
    "unit": (("runs", 1.0),),
}  # each from the largest to the smallest


@dataclass(frozen=True)
class TimeAxis:
    """The unit in which a picture measures the time of a step.

    unit : "seconds", "flops" or "unit" (runs of ops).
    weights : float64 [ops], the time of one run of each op.
    title : the words at the axis.
    """

    unit: str
    weights: np.ndarray
    title: str

    def scale(self, most: float) -> tuple[str, float]:
        """(name, size) of the unit in which times up to `most` read well: ("ms", 0.001) for 0.4 seconds."""
        units = _SCALES[self.unit]
        return next((u for u in units if most >= 2 * u[1]), units[-1])

    @classmethod
    def of(cls, graph: Graph, cost: str = "seconds", target: str | None = None) -> TimeAxis:
        """The axis for a graph: seconds, or `cost` where no op has seconds, or runs where no op costs anything.

        target : the device whose roofline gave the seconds, for the title.
        """
        for unit in dict.fromkeys(("seconds", cost, "unit")):
            weights = graph.weights(unit)
            if weights.any():
                return cls(unit, weights, _title(unit, target))
        return cls("unit", np.ones(len(graph.ops)), _title("unit", target))


def run_ends(
    graph: Graph, schedule: Schedule, judged: Simulation, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(float64 [runs], the time at which each run ends; how long it waited for copies before it began).

    weights : float64 [ops], the time of one run of each op. Waits count where these are the graph's seconds.
    """
    steps = schedule.array
    is_run = steps[:, 0] == RUN
    taken = weights[steps[is_run, 1]]
    if judged.begins is None or not np.array_equal(weights, graph.weights("seconds")):
        return np.cumsum(taken), np.zeros(len(taken))
    ends = judged.begins[is_run] + taken
    waits = judged.begins[is_run] - np.append(0.0, ends)[: len(ends)]
    return ends, np.where(waits > EPS * judged.seconds, waits, 0.0)


def _title(unit: str, target: str | None) -> str:
    if unit == "seconds":
        return "time in the step" + (f", by the roofline of {target}" if target else "")
    return {"flops": "FLOPs of the step", "unit": "operator runs of the step"}[unit]
