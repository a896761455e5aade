"""The memory timeline: an SVG of the memory that a schedule holds over time, plain above planned, on one scale."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..model.graph import Graph
from ..model.schedule import Schedule
from ..saying.shares import percent
from ..saying.sizes import format_bytes
from .svg import Canvas, TimeAxis, byte_unit, n, number, ticks
from .tracks import Track


@dataclass(frozen=True)
class TimelineLayout:
    """Sizes of the picture. All were chosen by eye.

    width_px : of the picture.
    left_px, right_px : from its edges to the panels.
    top_px, bottom_px : from its edges to the first and from the last panel.
    panel_px, gap_px, strip_px : height of a panel, of the space between two, and of the strip that shows waits.
    headroom_share : space above the highest memory, as a share of the panel's span.
    resident_share : where the bytes held during the whole step are more than this share of the peak, the picture starts
        above them.
    words_apart_px : least distance of the words at the peak from the budget's line.
    letter_px : average width of a letter of the legend.
    """

    width_px: int = 980
    left_px: int = 78
    right_px: int = 104
    top_px: int = 122
    bottom_px: int = 58
    panel_px: int = 200
    gap_px: int = 70
    strip_px: int = 5
    headroom_share: float = 0.16
    resident_share: float = 0.6
    words_apart_px: int = 14
    letter_px: float = 6.6

    @property
    def right(self) -> int:
        """x of the right edge of the panels."""
        return self.width_px - self.right_px

    @property
    def across(self) -> int:
        """Width of the panels in pixels."""
        return self.right - self.left_px


LAYOUT = TimelineLayout()


def memory_timeline(
    graph: Graph,
    planned: Schedule,
    *,
    budget: int | None = None,
    title: str | None = None,
    cost: str = "seconds",
    target: str | None = None,
) -> str:
    """An SVG of the memory held over time: the plain step above the schedule `planned`, on one scale.

    budget : bytes, resident bytes included, drawn as a line.
    title : None takes one with the graph's name.
    cost : the unit of the time where no op has seconds. target : the device whose roofline gave the seconds, for the title.

    Where most of the peak is held during the whole step, the picture starts above that memory and says so. Where there are
    several runs in one pixel, it shows the most memory of its runs, so the peak drawn is the peak judged.

    Raises
    ------
    FormatError : a schedule is not valid for the graph.
    """
    at, time = LAYOUT, TimeAxis.of(graph, cost, target)
    tracks = [
        Track.of(graph, Schedule.baseline(graph), "Plain", time.weights),
        Track.of(graph, planned, "Planned", time.weights),
    ]
    title = title or f"Memory of one training step: {graph.name}"
    top = max(int((t.memory + t.away).max(initial=graph.resident_bytes)) for t in tracks)
    floor = graph.resident_bytes if graph.resident_bytes > at.resident_share * top else 0
    view = _View(graph, tracks, floor, budget, (max(top, budget or 0) - floor) * (1 + at.headroom_share) or 1.0, time)
    c = Canvas(at.width_px, at.top_px + 2 * at.panel_px + at.gap_px + at.bottom_px)
    c.text(at.left_px, 34, title, "title")
    _legend(c, view, 60)
    for i, track in enumerate(tracks):
        _panel(c, view, track, at.top_px + i * (at.panel_px + at.gap_px), last=i == len(tracks) - 1)
    middle = at.top_px + at.panel_px + at.gap_px / 2
    above = f" above the {format_bytes(floor)} held all step" if floor else ""
    c.text(22, middle, f"memory held{above} ({view.unit})", "soft", "middle", turn=-90)
    words = f"{time.title} ({time.scale(view.length)[0]})"
    c.text((at.left_px + at.right) / 2, c.height - 14, words, "soft", "middle")
    return c.render(title, _describe(tracks, budget))


@dataclass(frozen=True)
class _View:
    """Scales that the panels share.

    floor, span : bytes at the bottom edge of a panel, and from there to its top.
    budget : bytes, or None.
    """

    graph: Graph
    tracks: list[Track]
    floor: int
    budget: int | None
    span: float
    time: TimeAxis

    @property
    def unit(self) -> str:
        return byte_unit(self.span)[0]

    @property
    def length(self) -> float:
        """The time of the longer schedule."""
        return max(t.length for t in self.tracks) or 1.0

    def x(self, moment: float) -> float:
        return LAYOUT.left_px + moment / self.length * LAYOUT.across

    def y(self, size: float, bottom: float) -> float:
        return bottom - (size - self.floor) / self.span * LAYOUT.panel_px


def _panel(c: Canvas, view: _View, track: Track, top: float, last: bool) -> None:
    bottom, right = top + LAYOUT.panel_px, LAYOUT.right
    _grid(c, view, top, bottom, right, last)
    end = view.x(track.length)
    starts, most, with_away, share, waits = track.columns(view.length, LAYOUT.across)
    xs = [view.x(s) for s in starts] + [end]
    ys = [view.y(m, bottom) for m in most]
    if (with_away > most).any():
        ends = [end if away else start for (start, end), away in zip(pairwise(xs), with_away > most, strict=True)]
        c.path(_area(xs, [view.y(m, bottom) for m in with_away], bottom, ends), "away")
    c.path(_area(xs, ys, bottom, xs[1:]), "area")
    c.path(_area(xs, ys, bottom, _stripes(xs, share)), "again")
    if not view.floor and view.graph.resident_bytes:
        base = view.y(view.graph.resident_bytes, bottom)
        c.rect(LAYOUT.left_px, base, end - LAYOUT.left_px, bottom - base, "base")
    c.path(_area(xs, [bottom - LAYOUT.strip_px] * len(ys), bottom, _stripes(xs, waits)), "waits")
    c.path(_outline(xs, ys), "edge")
    c.line(LAYOUT.left_px, bottom, right, bottom, "axis")
    _heading(c, track, top)
    if track.boundary is not None:
        x = view.x(float(track.ends[track.boundary]))
        c.line(x, top - 2, x, bottom, "phase")
        c.text(x - 7, top - 6, "forward", "soft small", "end")
        c.text(x + 7, top - 6, "backward", "soft small")
    if view.budget is not None:
        y = view.y(view.budget, bottom)
        c.line(LAYOUT.left_px, y, right, y, "limit")
        c.text(right + 8, y - 3, "budget", "limit-text small")
        c.text(right + 8, y + 12, format_bytes(view.budget), "limit-text small")
    _peak(c, view, track, bottom)


def _grid(c: Canvas, view: _View, top: float, bottom: float, right: float, last: bool) -> None:
    size = byte_unit(view.span)[1]
    for t in ticks(0, view.span / size):
        y = bottom - t * size / view.span * LAYOUT.panel_px
        c.line(LAYOUT.left_px, y, right, y, "grid")
        c.text(LAYOUT.left_px - 8, y + 4, number(t), "soft small", "end")
    scale = view.time.scale(view.length)[1]
    for t in ticks(0, view.length / scale, 8):
        c.line(view.x(t * scale), top, view.x(t * scale), bottom, "grid")
        if last:
            c.text(view.x(t * scale), bottom + 18, number(t), "soft small", "middle")


def _heading(c: Canvas, track: Track, top: float) -> None:
    again = int(track.again.sum())
    facts = f"{len(track.memory):,} runs"
    if again:
        extra = [("time", track.judged.overhead), ("FLOPs", track.judged.flops_overhead)]
        facts += f", {again:,} of them recomputed (" + ", ".join(f"{percent(x)} {what}" for what, x in extra) + ")"
    if moved := track.judged.moved_bytes:
        facts += f", {format_bytes(moved)} copied to the host"
    c.text(LAYOUT.left_px, top - 26, track.label, "head", then=facts)


def _peak(c: Canvas, view: _View, track: Track, bottom: float) -> None:
    """Draw the dot at the peak and its words, above the budget's line where the two would meet."""
    if track.peak_op is None:
        return
    x, y = view.x(track.middle(track.peak_run)), view.y(track.judged.peak_bytes, bottom)
    c.dot(x, y)
    words = y - 11
    if view.budget is not None and abs(view.y(view.budget, bottom) - words + 4) < LAYOUT.words_apart_px:
        words = min(y, view.y(view.budget, bottom)) - 9
    place = (x - LAYOUT.left_px) / LAYOUT.across
    anchor = "start" if place < 0.2 else "end" if place > 0.8 else "middle"
    c.text(
        x,
        words,
        f"peak {format_bytes(track.judged.peak_bytes)} {track.peak_place}",
        "mark",
        anchor,
        halo=True,
    )


def _legend(c: Canvas, view: _View, y: float) -> None:
    x = float(LAYOUT.left_px)
    items = [("area", "first run of an op"), ("again", "recomputed")]
    if any(t.away.any() for t in view.tracks):
        items.append(("away", "on the host"))
    if any(t.waits.any() for t in view.tracks):
        items.append(("waits", "waits"))
    if not view.floor and view.graph.resident_bytes:
        held = format_bytes(view.graph.resident_bytes)
        items.append(("base", f"held all step (parameters, gradients, inputs): {held}"))
    for cls, words in items:
        c.rect(x, y - 10, 12, 12, cls, ' rx="2"')
        c.text(x + 18, y, words, "soft small")
        x += 18 + LAYOUT.letter_px * len(words) + 22


def _stripes(xs: list[float], shares: np.ndarray) -> list[float]:
    """Where the stripe of each column ends that begins at its left edge and takes its share of the width.

    A stripe is never tinted, since over the blue area a tint of orange is grey. One narrower than a pixel and than its column
    is drawn together with the next one.
    """
    ends, width = [], 1.0  # so that a single narrow stripe is drawn
    for (start, end), share in zip(pairwise(xs), shares, strict=True):
        width += share * (end - start)
        drawn = min(width, end - start) if share and width >= min(1.0, end - start) else 0.0
        width -= drawn
        ends.append(end if drawn == end - start else start + drawn)
    return ends


def _area(xs: list[float], ys: list[float], bottom: float, ends: list[float]) -> str:
    """Path data of columns, each filled from its left edge to its end and down to `bottom`; neighbours join."""
    out: list[str] = []
    last = None
    for x, y, end in zip(xs, ys, ends, strict=False):
        if end > x:
            if x != last:
                out.append(f"{f'V{n(bottom)}Z' if out else ''}M{n(x)} {n(bottom)}")
            out.append(f"V{n(y)}H{n(end)}")
            last = end
    return "".join(out) + (f"V{n(bottom)}Z" if out else "")


def _outline(xs: list[float], ys: list[float]) -> str:
    if not ys:
        return ""
    return f"M{n(xs[0])} {n(ys[0])}" + "".join(f"V{n(y)}H{n(x)}" for x, y in zip(xs[1:], ys, strict=True))


def _describe(tracks: list[Track], budget: int | None) -> str:
    words = [_said(t) for t in tracks]
    return " ".join(words + ([f"The budget is {budget} bytes."] if budget is not None else []))


def _said(t: Track) -> str:
    if t.peak_op is None:
        return f"{t.label}: nothing runs in this graph."
    moved = f"{t.judged.moved_bytes} bytes are copied to the host; " if t.judged.moved_bytes else ""
    return (
        f"{t.label}: {len(t.memory)} operator runs, {int(t.again.sum())} of them recomputed; {moved}the peak is "
        f"{t.judged.peak_bytes} bytes in run {t.peak_run + 1}, {t.peak_place}."
    )
