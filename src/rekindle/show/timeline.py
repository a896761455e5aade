"""The memory timeline: what is held at each run of the schedule, plain above planned, on one scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.graph import Graph
from ..model.judge import Simulation, simulate
from ..model.schedule import RUN, Schedule
from ..sizes import format_bytes
from .svg import Canvas, byte_unit, n, number, ticks

WIDTH, LEFT, RIGHT, TOP, PANEL, GAP, BOTTOM = 980, 78, 104, 122, 200, 70, 58
LEVELS = 4  # shades of the tint of a pixel column in which only some runs are recomputed
MOSTLY_RESIDENT = 0.6  # above this share of the peak, what is held all step leaves the picture


@dataclass(frozen=True)
class Track:
    """One panel: what a schedule holds, run by run.

    memory : int64 [runs], bytes during each run, resident bytes included.
    again : bool [runs], whether the op ran before.
    boundary : index of the first run after which backward begins, or None.
    """

    label: str
    judged: Simulation
    memory: np.ndarray
    again: np.ndarray
    boundary: int | None
    peak_run: int
    peak_op: str

    @classmethod
    def of(cls, graph: Graph, schedule: Schedule, label: str) -> Track:
        judged = simulate(graph, schedule)
        steps = schedule.array
        is_run = steps[:, 0] == RUN
        ops, memory = steps[is_run, 1], judged.memory[is_run]
        again = np.ones(len(ops), np.bool_)
        again[np.unique(ops, return_index=True)[1]] = False
        backward = np.array([o.backward for o in graph.ops], np.bool_)[ops]
        starts = np.flatnonzero(ops == graph.boundary if graph.boundary is not None else backward)
        peak = int(memory.argmax()) if len(memory) else 0
        name = graph.ops[ops[peak]].name if len(ops) else ""
        return cls(label, judged, memory, again, int(starts[0]) if len(starts) else None, peak, name)


def memory_timeline(
    graph: Graph,
    planned: Schedule,
    plain: Schedule | None = None,
    *,
    budget: int | None = None,
    title: str | None = None,
) -> str:
    """An SVG of the memory held during each run; `plain` is the baseline unless given.

    budget : bytes, resident included, drawn as a line.

    Where what is held during the whole step is most of the peak, the picture starts above it and says so.
    More runs than pixels are thinned to the most memory per pixel, so the peak drawn is the peak judged.
    """
    tracks = [
        Track.of(graph, plain if plain is not None else Schedule.baseline(graph), "Plain"),
        Track.of(graph, planned, "Planned"),
    ]
    title = title or f"Memory of one training step: {graph.name}"
    top = max(t.judged.peak_bytes for t in tracks)
    floor = graph.resident_bytes if graph.resident_bytes > MOSTLY_RESIDENT * top else 0
    view = _View(graph, tracks, floor, budget, (max(top, budget or 0) - floor) * 1.16 or 1.0)
    c = Canvas(WIDTH, TOP + 2 * PANEL + GAP + BOTTOM)
    c.text(LEFT, 34, title, "title")
    _legend(c, view, 60)
    for i, track in enumerate(tracks):
        _panel(c, view, track, TOP + i * (PANEL + GAP), last=i == len(tracks) - 1)
    middle = TOP + PANEL + GAP / 2
    above = f" above the {format_bytes(floor)} held all step" if floor else ""
    c.text(22, middle, f"memory held{above} ({view.unit})", "soft", "middle", turn=-90)
    c.text((LEFT + WIDTH - RIGHT) / 2, c.height - 14, "operator runs, in the order of the schedule", "soft", "middle")
    return c.render(title, _describe(tracks, budget))


@dataclass(frozen=True)
class _View:
    """Scales shared by the panels. floor: the bytes at the bottom edge; span: bytes from bottom to top."""

    graph: Graph
    tracks: list[Track]
    floor: int
    budget: int | None
    span: float

    @property
    def unit(self) -> str:
        return byte_unit(self.span)[0]

    @property
    def runs(self) -> int:
        return max(1, *(len(t.memory) for t in self.tracks))

    def x(self, run: float) -> float:
        return LEFT + run / self.runs * (WIDTH - LEFT - RIGHT)

    def y(self, size: float, bottom: float) -> float:
        return bottom - (size - self.floor) / self.span * PANEL


def _panel(c: Canvas, view: _View, track: Track, top: float, last: bool) -> None:
    bottom, right = top + PANEL, WIDTH - RIGHT
    _grid(c, view, top, bottom, right, last)
    end = view.x(len(track.memory))
    starts, most, share = _columns(track, view.runs, WIDTH - LEFT - RIGHT)
    xs = [view.x(s) for s in starts] + [end]
    ys = [view.y(m, bottom) for m in most]
    c.path(_area(xs, ys, bottom, np.ones(len(ys), np.bool_)), "area")
    shade = np.ceil(share * LEVELS).astype(int)
    for level in range(1, LEVELS + 1):
        opacity = "" if level == LEVELS else f' fill-opacity="{level / LEVELS:g}"'
        c.path(_area(xs, ys, bottom, shade == level), "again", opacity)
    if not view.floor and view.graph.resident_bytes:
        base = view.y(view.graph.resident_bytes, bottom)
        c.rect(LEFT, base, end - LEFT, bottom - base, "base")
    c.path(_outline(xs, ys), "edge")
    c.line(LEFT, bottom, right, bottom, "axis")
    _heading(c, track, top)
    if track.boundary is not None:
        x = view.x(track.boundary + 1)
        c.line(x, top - 2, x, bottom, "phase")
        c.text(x - 7, top - 6, "forward", "soft small", "end")
        c.text(x + 7, top - 6, "backward", "soft small")
    if view.budget is not None:
        y = view.y(view.budget, bottom)
        c.line(LEFT, y, right, y, "limit")
        c.text(right + 8, y - 3, "budget", "limit-text small")
        c.text(right + 8, y + 12, format_bytes(view.budget), "limit-text small")
    _peak(c, view, track, bottom)


def _grid(c: Canvas, view: _View, top: float, bottom: float, right: float, last: bool) -> None:
    size = byte_unit(view.span)[1]
    for t in ticks(0, view.span / size):
        y = bottom - t * size / view.span * PANEL
        c.line(LEFT, y, right, y, "grid")
        c.text(LEFT - 8, y + 4, number(t), "soft small", "end")
    for t in ticks(0, view.runs, 8):
        if t != round(t):
            continue
        c.line(view.x(t), top, view.x(t), bottom, "grid")
        if last:
            c.text(view.x(t), bottom + 18, number(t), "soft small", "middle")


def _heading(c: Canvas, track: Track, top: float) -> None:
    again = int(track.again.sum())
    facts = f"{len(track.memory):,} runs"
    if again:
        extra = [("time", track.judged.overhead), ("FLOPs", track.judged.flops_overhead)]
        facts += f", {again:,} of them recomputed (" + ", ".join(f"+{x:.1%} {what}" for what, x in extra) + ")"
    c.text(LEFT, top - 26, track.label, "head", then=facts)


def _peak(c: Canvas, view: _View, track: Track, bottom: float) -> None:
    """The dot at the peak and its words, above the budget line where the two would meet."""
    if not len(track.memory):
        return
    x, y = view.x(track.peak_run + 0.5), view.y(track.judged.peak_bytes, bottom)
    c.dot(x, y)
    words = y - 11
    if view.budget is not None and abs(view.y(view.budget, bottom) - words + 4) < 14:
        words = min(y, view.y(view.budget, bottom)) - 9
    place = (x - LEFT) / (WIDTH - LEFT - RIGHT)
    anchor = "start" if place < 0.2 else "end" if place > 0.8 else "middle"
    c.text(
        x, words, f"peak {format_bytes(track.judged.peak_bytes)} in {_short(track.peak_op)}", "mark", anchor, halo=True
    )


def _legend(c: Canvas, view: _View, y: float) -> None:
    x = float(LEFT)
    items = [("area", "first run of an op"), ("again", "recomputed")]
    if not view.floor and view.graph.resident_bytes:
        held = format_bytes(view.graph.resident_bytes)
        items.append(("base", f"held all step (parameters, gradients, inputs): {held}"))
    for cls, words in items:
        c.rect(x, y - 10, 12, 12, cls, ' rx="2"')
        c.text(x + 18, y, words, "soft small")
        x += 18 + 6.6 * len(words) + 22


def _columns(track: Track, runs: int, pixels: int) -> tuple[list[float], np.ndarray, np.ndarray]:
    """(first run, most bytes, share of recomputed runs) of each column: a run, or a pixel where runs are more."""
    count = len(track.memory)
    if not count:
        return [], np.zeros(0), np.zeros(0)
    edges = np.arange(count) if runs <= pixels else np.unique((np.arange(pixels) * runs / pixels).astype(np.int64))
    edges = edges[edges < count]
    width = np.diff(np.append(edges, count))
    most = np.maximum.reduceat(track.memory, edges)
    return edges.tolist(), most, np.add.reduceat(track.again.astype(np.float64), edges) / width


def _area(xs: list[float], ys: list[float], bottom: float, chosen: np.ndarray) -> str:
    """Path data of the filled columns that are chosen; neighbours join."""
    out: list[str] = []
    i = 0
    while i < len(ys):
        if not chosen[i]:
            i += 1
            continue
        j = i
        out.append(f"M{n(xs[i])} {n(bottom)}")
        while j < len(ys) and chosen[j]:
            out.append(f"V{n(ys[j])}H{n(xs[j + 1])}")
            j += 1
        out.append(f"V{n(bottom)}Z")
        i = j
    return "".join(out)


def _outline(xs: list[float], ys: list[float]) -> str:
    if not ys:
        return ""
    return f"M{n(xs[0])} {n(ys[0])}" + "".join(f"V{n(y)}H{n(x)}" for x, y in zip(xs[1:], ys, strict=True))


def _short(name: str, most: int = 48) -> str:
    """ "layer1.0|aten.relu.default|f32[8]" -> "layer1.0 relu": what fits beside a dot."""
    where, _, rest = name.partition("|")
    op = rest.partition("|")[0].removeprefix("aten.").removesuffix(".default")
    words = f"{where} {op}".strip()
    return words if len(words) <= most else words[: most - 1] + "…"


def _describe(tracks: list[Track], budget: int | None) -> str:
    words = [
        f"{t.label}: {len(t.memory)} operator runs, {int(t.again.sum())} of them recomputed; the peak is "
        f"{t.judged.peak_bytes} bytes in run {t.peak_run + 1}, {t.peak_op}."
        for t in tracks
    ]
    return " ".join(words + ([f"The budget is {budget} bytes."] if budget is not None else []))
