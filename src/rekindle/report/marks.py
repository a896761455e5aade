"""Numbers beside marks: each on the nearest spot where nothing is drawn yet."""

from __future__ import annotations

from collections.abc import Sequence

from ..show.svg import Canvas

Box = tuple[float, float, float, float]  # left, top, right, bottom
SIZE = 4.2  # half a mark, in pixels


def label(c: Canvas, text: str, at: tuple[float, float], taken: Sequence[Box], frame: Box) -> Box:
    """Write a label on the nearest free spot around a mark, with a line to it where that is far; returns its box."""
    wide, high = 6.1 * len(text) + 1, 10.0
    best: tuple[float, Box] | None = None
    for far in (0, 6, 13, 21, 30, 42, 56):
        for dx, dy in ((1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1)):
            gap = SIZE + 2.5 + far
            middle_x = at[0] + dx * (gap + wide / 2)
            middle_y = at[1] + dy * (gap + high / 2)
            box = (middle_x - wide / 2, middle_y - high / 2, middle_x + wide / 2, middle_y + high / 2)
            cost = sum(_overlap(box, other) for other in taken) + 40 * _outside(box, frame) + far
            if best is None or cost < best[0]:
                best = (cost, box)
        if best is not None and best[0] <= far:
            break
    assert best is not None
    box = best[1]
    middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    if apart(at, (min(max(at[0], box[0]), box[2]), min(max(at[1], box[1]), box[3]))) > 11:
        c.line(*at, *middle, "lead")
    c.text(middle[0], box[3] - 1, text, "num", "middle", halo=True)
    return box


def apart(a: tuple[float, float], b: tuple[float, float]) -> float:
    return max(abs(a[0] - b[0]), abs(a[1] - b[1]))


def _overlap(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def _outside(box: Box, frame: Box) -> float:
    return sum(max(0.0, d) for d in (frame[0] - box[0], frame[1] - box[1], box[2] - frame[2] - 16, box[3] - frame[3]))
