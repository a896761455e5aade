"""The memory/time curve: the least overhead found for every peak."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError
from ..model.plan import Plan
from ..sizes import format_bytes
from .svg import Canvas, byte_unit, n, number, ticks

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 480, 84, 40, 84, 66
APART = 46  # pixels between two labelled points


def frontier_svg(plans: Sequence[Plan], title: str | None = None) -> str:
    """An SVG of overhead against peak, one point per plan, as a staircase: what each amount of memory buys.

    In the grey area on the left no schedule exists: a plan's certified bound holds for every overhead up to its own.

    Raises
    ------
    UsageError : there is no plan to draw.
    """
    if not plans:
        raise UsageError("a frontier needs at least one plan")
    plans = sorted(plans, key=lambda p: p.peak_bytes)
    title = title or f"What memory costs: {plans[0].graph.name}"
    plain, bound = plans[0].baseline_peak_bytes, min(p.bound_bytes for p in plans)
    left_edge, right_edge = min(bound, plans[0].peak_bytes), max(plain, plans[-1].peak_bytes)
    pad = 0.06 * (right_edge - left_edge) or max(1.0, 0.05 * right_edge)
    low, high = max(0.0, left_edge - pad), right_edge + pad
    top = max(0.02, 1.12 * max(p.overhead for p in plans))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(size: float) -> float:
        return LEFT + (size - low) / (high - low) * (right - LEFT)

    def y(overhead: float) -> float:
        return bottom - max(0.0, overhead) / top * (bottom - TOP)

    c = Canvas(WIDTH, HEIGHT)
    c.text(LEFT, 32, title, "title")
    c.text(LEFT, 54, _subtitle(plans), "soft")
    unit, size = byte_unit(high)
    for t in ticks(0, top * 100, 5):
        c.line(LEFT, y(t / 100), right, y(t / 100), "grid")
        c.text(LEFT - 8, y(t / 100) + 4, f"{number(t)} %", "soft small", "end")
    for t in ticks(low / size, high / size, 7):
        c.line(x(t * size), TOP, x(t * size), bottom, "grid")
        c.text(x(t * size), bottom + 18, number(t), "soft small", "middle")
    never = "".join(f"H{n(x(p.bound_bytes))}V{n(y(p.overhead))}" for p in reversed(plans))
    c.path(f"M{LEFT} {bottom}{never}H{LEFT}Z", "never")
    c.line(x(bound), TOP, x(bound), bottom, "phase")
    c.text(x(bound), TOP - 7, f"certified: none below {format_bytes(bound)}", "soft small", _anchor(x(bound), right))
    stairs = f"M{n(x(plans[0].peak_bytes))} {n(y(plans[0].overhead))}" + "".join(
        f"H{n(x(p.peak_bytes))}V{n(y(p.overhead))}" for p in plans[1:]
    )
    end = f"H{n(right)}"
    c.path(f"{stairs}{end}V{n(bottom)}H{n(x(plans[0].peak_bytes))}Z", "under")
    c.path(stairs + end, "curve")
    c.line(x(plain), TOP, x(plain), bottom, "phase")
    if x(plain) - x(bound) > 330:
        c.text(x(plain), TOP - 7, f"plain {format_bytes(plain)}", "soft small", _anchor(x(plain), right))
    c.line(LEFT, bottom, right, bottom, "axis")
    _points(c, plans, [(x(p.peak_bytes), y(p.overhead)) for p in plans])
    c.text((LEFT + right) / 2, HEIGHT - 18, f"peak memory of the step ({unit})", "soft", "middle")
    what = {"seconds": "extra time", "flops": "extra FLOPs", "unit": "extra op runs"}[plans[0].cost]
    c.text(24, (TOP + bottom) / 2, f"{what} (% of the plain step)", "soft", "middle", turn=-90)
    return c.render(title, _subtitle(plans) + f" No schedule this cheap exists below {bound} bytes.")


def _points(c: Canvas, plans: Sequence[Plan], places: Sequence[tuple[float, float]]) -> None:
    """Dots, and words at those far enough from the last that has some; the first always has them."""
    last: tuple[float, float] | None = None
    for p, (px, py) in zip(plans, places, strict=True):
        facts = (
            f"{format_bytes(p.peak_bytes)}, +{p.overhead:.1%}, +{p.flops_overhead:.1%} FLOPs, {p.solver}, {p.status}"
        )
        c.dot(px, py, "point", facts)
        if last is None or abs(px - last[0]) + abs(py - last[1]) > APART:
            c.text(px + 7, py - 8, f"+{p.overhead:.1%}", "mark small", halo=True)
            last = (px, py)


def _anchor(x: float, right: float) -> str:
    return "start" if x < LEFT + 60 else "end" if x > right - 60 else "middle"


def _subtitle(plans: Sequence[Plan]) -> str:
    least = plans[0]
    if len(plans) == 1:
        return f"1 plan: {format_bytes(least.peak_bytes)} at +{least.overhead:.1%}."
    return (
        f"{len(plans)} plans from {format_bytes(least.peak_bytes)} at "
        f"+{least.overhead:.1%} to {format_bytes(plans[-1].peak_bytes)} at +{plans[-1].overhead:.1%}; "
        f"plain training holds {format_bytes(least.baseline_peak_bytes)}."
    )
