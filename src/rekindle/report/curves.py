"""Peak against overhead for one model: auto's points as a staircase, every other method as a numbered mark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..show.svg import Canvas, n, number, ticks
from .markdown import mb
from .marks import SIZE, Box, apart, label
from .rows import Row, extra, pick, plain_mb, solver_of

WIDTH, LEFT, GAP, RIGHT, TOP, PANEL, BELOW = (
    860,
    62,
    58,
    24,
    92,
    300,
    78,
)  # PANEL: its height; BELOW: from it to the key
LINE = 17  # pixels from one line of the key to the next
FARTHEST = 0.6  # extra cost beyond which a mark stands at the edge; the key has its figures
TITLES = {"flops": "extra FLOPs (measured)", "seconds": "extra time (modelled)"}
STYLE = """
.rk .auto{fill:#2d5d8f;stroke:#ffffff;stroke-width:1.2}
.rk .tool{fill:#e8710a;stroke:#ffffff;stroke-width:1.2}
.rk .solver{fill:#7b8794;stroke:#ffffff;stroke-width:1.2}
.rk .plain{fill:#24303c;stroke:#ffffff;stroke-width:1.2}
.rk .lead{stroke:#8795a3;stroke-width:.7}
.rk .floor{fill:none;stroke:#c92a2a;stroke-width:1.4;stroke-dasharray:5 3}
.rk .num,.rk .num tspan{font-size:10.5px;font-weight:600}
@media (prefers-color-scheme:dark){
.rk .auto{fill:#86b6e6;stroke:#14191f}
.rk .tool{fill:#f79a3e;stroke:#14191f}
.rk .solver{fill:#9aa8b5;stroke:#14191f}
.rk .plain{fill:#e4e9ee;stroke:#14191f}
.rk .lead{stroke:#6b7885}
.rk .floor{stroke:#ff7b72}
}
""".strip()


@dataclass(frozen=True)
class Point:
    """A row in a panel: its number in the key, extra cost as a fraction, and peak as a fraction of the plain step's."""

    key: int
    row: Row
    overhead: float
    share: float


def panel_points(rows: Sequence[Row], measure: str) -> list[Point]:
    """One point per method that ran and whose cost is known, numbered as in `methods`.

    Of rows of the same method planned in different costs, the one planned in this measure is taken.
    """
    plain = plain_mb(rows)
    found = []
    for key, method in enumerate(methods(rows), 1):
        row = pick(rows, method, measure)
        cost = None if row is None or row["status"] != "ok" else extra(row, measure)
        if plain and row is not None and cost is not None:
            found.append(Point(key, row, cost, row["peak_mb"] / plain))
    return found


def methods(rows: Sequence[Row]) -> list[str]:
    """Methods that ran, in the order of the key: plain, PyTorch's own, auto, the other solvers."""
    ran = dict.fromkeys(r["method"] for r in rows if r["status"] == "ok")
    rank = {"plain": 0, "tool": 1, "auto": 2, "solver": 3}
    by_name = {r["method"]: r for r in rows}
    return sorted(ran, key=lambda m: (rank[kind(by_name[m])], m if kind(by_name[m]) == "solver" else ""))


def kind(row: Row) -> str:
    """ "plain", "auto", "solver" (any other solver) or "tool" (what PyTorch brings)."""
    if row["method"] == "plain":
        return "plain"
    if solver_of(row) == "auto":
        return "auto"
    return "solver" if row.get("solver") else "tool"


def staircase(points: Sequence[Point]) -> list[Point]:
    """Those that no other is at least as small and as cheap as, cheapest first."""
    best: list[Point] = []
    for p in sorted(points, key=lambda p: (p.overhead, p.share)):
        if not best or p.share < best[-1].share:
            best.append(p)
    return best


def floors(rows: Sequence[Row], measure: str) -> list[tuple[float, float]]:
    """(overhead, share of the plain peak), cheapest first: no schedule up to that overhead has a smaller peak.

    A row's bound holds for every overhead up to its own, in the cost that it was planned in.
    """
    plain = plain_mb(rows)
    known = [
        (overhead, r["bound_mb"] / plain)
        for r in rows
        if plain and r["status"] == "ok" and r.get("bound_mb") and (r.get("cost") or "flops") == measure
        and (overhead := r["overhead"] if r.get("overhead") is not None else extra(r, measure)) is not None
    ]  # fmt: skip
    steps: list[tuple[float, float]] = []
    for overhead, share in sorted(known, reverse=True):  # dearest first: what holds there holds for all that is cheaper
        if not steps or share > steps[-1][1]:
            steps.append((overhead, share))
    return steps[::-1]


def frontier_chart(rows: Sequence[Row]) -> str:
    """The SVG of one model's rows: a panel by FLOPs, one by modelled time where that is known, and the key.

    Raises
    ------
    UsageError : no row of the model ran, or its plain peak is not known.
    """
    panels = {m: p for m in TITLES if (p := panel_points(rows, m))}
    plain = plain_mb(rows)
    if not panels or plain is None:
        raise UsageError("a curve needs at least one row that ran, and the plain peak")
    if all(p.row["method"] == "plain" for p in panels.get("seconds", [])):
        panels.pop("seconds", None)
    named = methods(rows)
    lines = -(-len(named) // 2)
    first = rows[0]
    batch = "" if first.get("batch") is None else f", batch {first['batch']}"
    title = f"{first['model']}{batch}: memory against extra cost"
    subtitle = f"Plain step: {mb(plain)} MB of activations. Blue: auto. Orange: PyTorch's own. Grey: other solvers."
    c = Canvas(WIDTH, TOP + PANEL + BELOW + LINE * lines + 34)
    c.parts.append(f"<style>{STYLE}</style>")
    c.text(LEFT, 32, title, "title")
    c.text(LEFT, 54, subtitle, "soft")
    top = 1.04 * min(1.25, max(1.0, *(p.share for ps in panels.values() for p in ps)))
    wide = (WIDTH - LEFT - RIGHT - GAP * (len(panels) - 1)) / len(panels)
    for i, (measure, points) in enumerate(panels.items()):
        left = LEFT + i * (wide + GAP)
        _panel(c, points, floors(rows, measure), (left, TOP, left + wide, TOP + PANEL), top, TITLES[measure])
    by_name = {r["method"]: r for r in rows}
    half = (WIDTH - LEFT - RIGHT) / 2
    for i in range(min(2, len(named))):
        keys = range(1 + i * lines, min(len(named), (i + 1) * lines) + 1)
        _key(c, {k: by_name[named[k - 1]] for k in keys}, panels, LEFT - 30 + i * (half + 22), TOP + PANEL + BELOW)
    return c.render(title, subtitle)


def _panel(
    c: Canvas, points: Sequence[Point], steps: Sequence[tuple[float, float]], frame: Box, top: float, title: str
) -> None:
    left, _, right, bottom = frame
    most = min(FARTHEST, max(0.1, 1.06 * max(p.overhead for p in points)))
    least = min(0.0, 1.1 * min(p.overhead for p in points)) - 0.02 * most

    def x(overhead: float) -> float:
        return left + (min(overhead, most) - least) / (most - least) * (right - left)

    def y(share: float) -> float:
        return bottom - min(share, top) / top * (bottom - TOP)

    for t in ticks(0, top * 100, 6):
        c.line(left, y(t / 100), right, y(t / 100), "grid")
        c.text(left - 7, y(t / 100) + 4, f"{number(t)} %", "soft small", "end")
    for t in ticks(least * 100, most * 100, 5):
        c.line(x(t / 100), TOP, x(t / 100), bottom, "grid")
        c.text(x(t / 100), bottom + 17, f"{number(t)} %", "soft small", "middle")
    _floor(c, steps, x, y, left)
    auto = [(x(p.overhead), y(p.share)) for p in staircase([p for p in points if kind(p.row) == "auto"])]
    drawn: list[Box] = []  # the staircase, so that no number is written on it
    if auto:
        c.path(
            f"M{n(auto[0][0])} {n(auto[0][1])}" + "".join(f"H{n(a)}V{n(b)}" for a, b in auto[1:]) + f"H{n(right)}",
            "curve",
        )
        for (a, b), (a2, b2) in zip(auto, [*auto[1:], (right, auto[-1][1])], strict=True):
            drawn += [(a, b - 1, a2, b + 1), (a2 - 1, b, a2 + 1, b2)]
    c.line(left, bottom, right, bottom, "axis")
    c.line(left, TOP, left, bottom, "axis")
    _marks(c, points, [(x(p.overhead), y(p.share)) for p in points], frame, drawn)
    c.text(left, TOP - 12, "peak, % of plain", "soft small")
    c.text((left + right) / 2, bottom + 38, title, "soft", "middle")


def _floor(
    c: Canvas,
    steps: Sequence[tuple[float, float]],
    x: Callable[[float], float],
    y: Callable[[float], float],
    left: float,
) -> None:
    """Where no schedule exists: under the steps, each from the one before it to its own overhead."""
    if not steps:
        return
    line = f"M{left} {n(y(steps[0][1]))}" + "".join(
        f"V{n(y(share))}H{n(x(max(0.0, overhead)))}" for overhead, share in steps
    )
    end = n(x(max(0.0, steps[-1][0])))
    c.path(f"{line}V{n(y(0))}H{left}Z", "never")
    c.path(line, "floor")
    if y(0) - y(steps[0][1]) > 30 and float(end) - left > 110:
        c.text(left + 6, y(0) - 8, "certified: no plan here", "soft small")


# -- marks and the key ----------------------------------------------------------------------------------------------
def _marks(
    c: Canvas, points: Sequence[Point], places: Sequence[tuple[float, float]], frame: Box, drawn: Sequence[Box]
) -> None:
    """Marks, auto's on top; marks on the same spot share one label."""
    order = sorted(
        range(len(points)), key=lambda i: {"solver": 0, "tool": 1, "plain": 2, "auto": 3}[kind(points[i].row)]
    )
    for i in order:
        _mark(c, points[i], *places[i])
    spots: list[list[int]] = []
    for i in reversed(order):
        near = next((s for s in spots if apart(places[s[0]], places[i]) < 1.6 * SIZE), None)
        if near is None:
            spots.append([i])
        else:
            near.append(i)
    taken = [*drawn, *((px - SIZE, py - SIZE, px + SIZE, py + SIZE) for px, py in places)]
    for spot in spots:
        keys = sorted(points[i].key for i in spot)
        taken.append(label(c, " ".join(map(str, keys)), places[spot[0]], taken, frame))


def _mark(c: Canvas, p: Point, px: float, py: float) -> None:
    tip = f"{p.row['method']}: {p.share:.1%} of plain, {p.overhead:+.1%}"
    shape = kind(p.row)
    if shape == "tool":
        c.path(f"M{n(px - SIZE)} {n(py - SIZE)}h{n(2 * SIZE)}v{n(2 * SIZE)}h{n(-2 * SIZE)}Z", "tool")
    elif shape == "plain":
        c.path(f"M{n(px)} {n(py - 6)}l6 6l-6 6l-6 -6Z", "plain")
    else:
        c.dot(px, py, shape, tip, SIZE)


def _key(c: Canvas, part: Mapping[int, Row], panels: Mapping[str, Sequence[Point]], left: float, top: float) -> None:
    """A part of the key: number, method, and in each panel peak and cost."""
    columns = {m: left + 274 + 106 * i for i, m in enumerate(panels)}
    c.text(left + 28, top, "method", "soft small")
    for m, at in columns.items():
        c.text(at - 56, top, "peak", "soft small", "end")
        c.text(at, top, {"flops": "FLOPs", "seconds": "time"}[m], "soft small", "end")
    for i, (key, row) in enumerate(part.items(), 1):
        y = top + 4 + LINE * i
        c.text(left + 20, y, str(key), "num", "end")
        c.text(left + 28, y, row["method"], "mark small" if kind(row) == "auto" else "small")
        for m, at in columns.items():
            p = next((p for p in panels[m] if p.key == key), None)
            c.text(at - 56, y, "-" if p is None else f"{p.share:.1%}", "small", "end")
            c.text(at, y, "-" if p is None else f"{p.overhead:+.{1 if p.overhead < 1 else 0}%}", "small", "end")
