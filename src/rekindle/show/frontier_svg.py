"""The memory/time curve as an SVG: the least overhead found for every peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..model.plan import Plan
from ..saying.shares import percent
from ..saying.sizes import format_bytes
from .svg import Canvas, byte_unit, n, number, ticks


@dataclass(frozen=True)
class FrontierLayout:
    """Sizes of the picture. All were chosen by eye.

    width_px, height_px : of the picture.
    left_px, right_px, top_px, bottom_px : from its edges to the curve's frame.
    letter_px, line_px : width of a letter, and height of a line, of the words beside a point.
    words_px : width of the words at an edge of the frame; nearer to it they start, or end, at their line.
    plain_px : least distance between the lines of the bound and of the baseline for both to have words.
    dearest_share : overhead up to which the picture is drawn to scale; dearer plans stand at its upper edge.
    side_share, above_share : space beside the curve and above it, as a share of its width and its height.
    """

    width_px: int = 860
    height_px: int = 480
    left_px: int = 84
    right_px: int = 40
    top_px: int = 84
    bottom_px: int = 66
    letter_px: float = 8.6
    line_px: int = 15
    words_px: int = 60
    plain_px: int = 330
    dearest_share: float = 1.5
    side_share: float = 0.06
    above_share: float = 0.12

    @property
    def right(self) -> int:
        """x of the frame's right edge."""
        return self.width_px - self.right_px

    @property
    def bottom(self) -> int:
        """y of the frame's lower edge."""
        return self.height_px - self.bottom_px


LAYOUT = FrontierLayout()


@dataclass(frozen=True)
class _Scales:
    """Bytes across, from `low` to `high`; overhead upwards, from 0 to `top`."""

    low: float
    high: float
    top: float

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> _Scales:
        """Scales on which all plans, their bounds and the plain step lie; plans by growing peak."""
        left = min(plans[0].peak_bytes, *(p.bound_bytes for p in plans))
        right = max(plans[0].baseline_peak_bytes, plans[-1].peak_bytes)
        pad = LAYOUT.side_share * (right - left) or max(1.0, 0.05 * right)
        dearest = max(p.overhead for p in plans)
        top = max(0.02, (1 + LAYOUT.above_share) * min(dearest, LAYOUT.dearest_share))
        return cls(max(0.0, left - pad), right + pad, top)

    def x(self, size_bytes: float) -> float:
        return LAYOUT.left_px + (size_bytes - self.low) / (self.high - self.low) * (LAYOUT.right - LAYOUT.left_px)

    def y(self, overhead: float) -> float:
        return LAYOUT.bottom - min(max(0.0, overhead) / self.top, 1.0) * (LAYOUT.bottom - LAYOUT.top_px)


def frontier_svg(plans: Sequence[Plan], title: str | None = None) -> str:
    """An SVG of overhead against peak memory, one point per plan, as a staircase.

    plans : in any order, all of one graph and one cost.
    title : None takes one with the graph's name.

    In the grey area on the left no schedule exists: a plan's certified bound holds for every overhead up to its own.

    Raises
    ------
    UsageError : there is no plan to draw.
    """
    if not plans:
        raise UsageError("a frontier needs at least one plan")
    plans = sorted(plans, key=lambda p: p.peak_bytes)
    title = title or f"Peak memory against extra cost: {plans[0].graph.name}"
    proven = [p for p in plans if p.verified]  # a certificate that a file claims draws no area
    bound = min((p.bound_bytes for p in proven), default=0)
    to = _Scales.of(plans)
    c = Canvas(LAYOUT.width_px, LAYOUT.height_px)
    c.text(LAYOUT.left_px, 32, title, "title")
    c.text(LAYOUT.left_px, 54, _subtitle(plans), "soft")
    _grid(c, to)
    if proven:
        _impossible(c, to, proven, bound)
    _curve(c, to, plans)
    _plain(c, to, plans[0].baseline_peak_bytes, bound)
    c.line(LAYOUT.left_px, LAYOUT.bottom, LAYOUT.right, LAYOUT.bottom, "axis")
    _points(c, plans, [(to.x(p.peak_bytes), to.y(p.overhead)) for p in plans])
    _axis_titles(c, byte_unit(to.high)[0], plans[0].cost)
    claim = f" No schedule this cheap exists below {bound} bytes." if proven else " Its bounds are not verified."
    return c.render(title, _subtitle(plans) + claim)


def _grid(c: Canvas, to: _Scales) -> None:
    at = LAYOUT
    _, size = byte_unit(to.high)
    for t in ticks(0, to.top * 100, 5):
        c.line(at.left_px, to.y(t / 100), at.right, to.y(t / 100), "grid")
        c.text(at.left_px - 8, to.y(t / 100) + 4, f"{number(t)} %", "soft small", "end")
    for t in ticks(to.low / size, to.high / size, 7):
        c.line(to.x(t * size), at.top_px, to.x(t * size), at.bottom, "grid")
        c.text(to.x(t * size), at.bottom + 18, number(t), "soft small", "middle")


def _impossible(c: Canvas, to: _Scales, plans: Sequence[Plan], bound: int) -> None:
    """Draw the area in which no schedule exists, and the line of the least bound."""
    at = LAYOUT
    never = "".join(f"H{n(to.x(p.bound_bytes))}V{n(to.y(p.overhead))}" for p in reversed(plans))
    c.path(f"M{at.left_px} {at.bottom}{never}H{at.left_px}Z", "never")
    x = to.x(bound)
    c.line(x, at.top_px, x, at.bottom, "phase")
    c.text(x, at.top_px - 7, f"certified: none below {format_bytes(bound)}", "soft small", _anchor(x))


def _curve(c: Canvas, to: _Scales, plans: Sequence[Plan]) -> None:
    at = LAYOUT
    stairs = f"M{n(to.x(plans[0].peak_bytes))} {n(to.y(plans[0].overhead))}" + "".join(
        f"H{n(to.x(p.peak_bytes))}V{n(to.y(p.overhead))}" for p in plans[1:]
    )
    end = f"H{n(at.right)}"
    c.path(f"{stairs}{end}V{n(at.bottom)}H{n(to.x(plans[0].peak_bytes))}Z", "under")
    c.path(stairs + end, "curve")


def _plain(c: Canvas, to: _Scales, plain_bytes: int, bound: int) -> None:
    """Draw the line of the baseline's peak, with words where they do not meet the bound's words."""
    x = to.x(plain_bytes)
    c.line(x, LAYOUT.top_px, x, LAYOUT.bottom, "phase")
    if x - to.x(bound) > LAYOUT.plain_px:
        c.text(x, LAYOUT.top_px - 7, f"baseline {format_bytes(plain_bytes)}", "soft small", _anchor(x))


def _axis_titles(c: Canvas, unit: str, cost: str) -> None:
    at = LAYOUT
    c.text((at.left_px + at.right) / 2, at.height_px - 18, f"peak memory of the step ({unit})", "soft", "middle")
    extra = {"seconds": "extra time", "flops": "extra FLOPs", "unit": "extra op runs"}[cost]
    c.text(24, (at.top_px + at.bottom) / 2, f"{extra} (% of the baseline)", "soft", "middle", turn=-90)


def _points(c: Canvas, plans: Sequence[Plan], places: Sequence[tuple[float, float]]) -> None:
    """Draw a dot per plan, with words where they meet no other words; the first dot always has words."""
    taken: list[tuple[float, float, float]] = []  # left end, right end and height of words
    for p, (px, py) in zip(plans, places, strict=True):
        price = percent(p.overhead)
        facts = f"{format_bytes(p.peak_bytes)}, {price}, {percent(p.flops_overhead)} FLOPs, {p.solver}, {p.status}"
        c.dot(px, py, "point", facts)
        left, right, y = px + 7, px + 7 + LAYOUT.letter_px * len(price), max(py - 8, LAYOUT.top_px + 14)
        if all(right < a or left > b or abs(y - z) > LAYOUT.line_px for a, b, z in taken):
            c.text(left, y, price, "mark small", halo=True)
            taken.append((left, right, y))


def _anchor(x: float) -> str:
    """Where words at x start, so that they stay inside the frame."""
    if x < LAYOUT.left_px + LAYOUT.words_px:
        return "start"
    return "end" if x > LAYOUT.right - LAYOUT.words_px else "middle"


def _subtitle(plans: Sequence[Plan]) -> str:
    least = plans[0]
    if len(plans) == 1:
        return f"1 plan: {format_bytes(least.peak_bytes)} at {percent(least.overhead)}."
    return (
        f"{len(plans)} plans from {format_bytes(least.peak_bytes)} at "
        f"{percent(least.overhead)} to {format_bytes(plans[-1].peak_bytes)} at {percent(plans[-1].overhead)}; "
        f"the baseline holds {format_bytes(least.baseline_peak_bytes)}."
    )
