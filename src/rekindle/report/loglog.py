"""Series on two logarithmic axes, and the exponent of the power law through one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..errors import UsageError
from ..show.svg import Canvas, n

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 440, 80, 200, 76, 62
SERIES = 6  # colours; more series repeat them
STYLE = """
.rk .s0{color:#24303c}.rk .s1{color:#e8710a}.rk .s2{color:#7b4fa3}.rk .s3{color:#2d5d8f}.rk .s4{color:#2b8a3e}
.rk .s5{color:#a61e4d}
.rk .run{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}
.rk .spot{fill:currentColor}
.rk .law{stroke:#8795a3;stroke-width:1.2;stroke-dasharray:5 4;fill:none}
@media (prefers-color-scheme:dark){
.rk .s0{color:#e4e9ee}.rk .s1{color:#f79a3e}.rk .s2{color:#b79ae0}.rk .s3{color:#86b6e6}.rk .s4{color:#69db7c}
.rk .s5{color:#f783ac}
.rk .law{stroke:#6b7885}
}
""".strip()
Points = Sequence[tuple[float, float]]


def exponent(points: Points) -> float:
    """b of the law a * x^b that fits best: least squares on the logarithms.

    Raises
    ------
    UsageError : fewer than two different x, or a coordinate that is not above 0.
    """
    if len({x for x, _ in points}) < 2 or any(not (x > 0 and y > 0) for x, y in points):
        raise UsageError("an exponent needs two different x, and all coordinates above 0")
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    mx, my = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / sum((x - mx) ** 2 for x in xs)


def loglog_chart(
    title: str, subtitle: str, x_name: str, y_name: str, series: Mapping[str, Points], laws: Mapping[str, Points] | None = None,
    *, joined: bool = True,
) -> str:  # fmt: skip
    """The SVG of series on log axes, each labelled at its right end.

    series : name -> (x, y), both above 0.
    laws : likewise; drawn as thin dashed lines for comparison.
    joined : whether a series is a line through its points, or the points alone.

    Raises
    ------
    UsageError : there is no point to draw, or a coordinate is not above 0.
    """
    laws = laws or {}
    points = [p for ps in [*series.values(), *laws.values()] for p in ps]
    if not points or any(not (x > 0 and y > 0) for x, y in points):
        raise UsageError("a chart on log axes needs points, all of them above 0")
    x_low, x_high = _span([x for x, _ in points])
    y_low, y_high = _span([y for _, y in points])
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(value: float) -> float:
        return LEFT + math.log(value / x_low) / math.log(x_high / x_low) * (right - LEFT)

    def y(value: float) -> float:
        return bottom - math.log(value / y_low) / math.log(y_high / y_low) * (bottom - TOP)

    c = Canvas(WIDTH, HEIGHT)
    c.parts.append(f"<style>{STYLE}</style>")
    c.text(LEFT, 30, title, "title")
    c.text(LEFT, 52, subtitle, "soft")
    for t in log_ticks(x_low, x_high):
        c.line(x(t), TOP, x(t), bottom, "grid")
        c.text(x(t), bottom + 17, f"{t:,g}", "soft small", "middle")
    for t in log_ticks(y_low, y_high):
        c.line(LEFT, y(t), right, y(t), "grid")
        c.text(LEFT - 7, y(t) + 4, f"{t:,g}", "soft small", "end")
    c.line(LEFT, bottom, right, bottom, "axis")
    ends = []
    for name, ps in laws.items():
        ordered = sorted(ps)
        c.path(_line([(x(a), y(b)) for a, b in ordered]), "law")
        ends.append((y(ordered[-1][1]), name, "soft small", ""))
    for i, (name, ps) in enumerate(series.items()):
        ordered = sorted(ps)
        c.parts.append(f'<g class="s{i % SERIES}">')
        if joined:
            c.path(_line([(x(a), y(b)) for a, b in ordered]), "run")
        for a, b in ordered:
            c.dot(x(a), y(b), "spot", f"{name}: {a:,g}, {b:,.4g}", 3.6)
        c.parts.append("</g>")
        ends.append((y(ordered[-1][1]) if joined else TOP + 20.0 * i, name, "mark small", f"s{i % SERIES}"))
    _names(c, ends, right)
    c.text((LEFT + right) / 2, HEIGHT - 18, x_name, "soft", "middle")
    c.text(22, (TOP + bottom) / 2, y_name, "soft", "middle", turn=-90)
    return c.render(title, subtitle)


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from low to high, and multiples of them where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors, enough in (((1,), 4), ((1, 3), 4), ((1, 2, 5), 2), (range(1, 10), 0)):
        found = [f * 10.0**e for e in range(first, last + 1) for f in factors]
        found = [t for t in found if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)]
        if len(found) >= enough:
            break
    return found


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Somewhat more than from the least to the greatest, and at least a factor of two."""
    low, high = min(values), max(values)
    pad = max((high / low) ** 0.05, 1.0 if high / low >= 2 else (2 * low / high) ** 0.5)
    return low / pad, high * pad


def _line(places: Points) -> str:
    return "M" + "L".join(f"{n(a)} {n(b)}" for a, b in places)


def _names(c: Canvas, ends: list[tuple[float, str, str, str]], left: float) -> None:
    """Names beside the ends of their lines, moved apart where they would touch."""
    last = -1e9
    for at, name, cls, colour in sorted(ends):
        last = max(at + 4, last + 16)
        if colour:
            c.parts.append(f'<g class="{colour}">')
            c.dot(left + 12, last - 4, "spot", "", 3.6)
            c.parts.append("</g>")
        c.text(left + 22, last, name, cls)
