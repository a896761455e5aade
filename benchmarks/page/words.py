"""Words beside the marks of a picture, where they cover no mark and no other words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib.axes import Axes

FONT_PT, LETTER_SHARE = 8.0, 0.58  # size of the words; width of a letter as a share of it, on average
MARK_PT = 4.0  # around the middle of a mark that words keep away
AWAY_PT = (7.0, 15.0, 25.0, 38.0)  # distances from the mark that are tried, the nearest first
PT_PER_INCH = 72


class Box(NamedTuple):
    """A rectangle in points from the lower left corner of the axes."""

    left: float
    low: float
    right: float
    high: float

    def meets(self, other: Box) -> bool:
        return self.left < other.right and other.left < self.right and self.low < other.high and other.low < self.high


class Words:
    """Places words in axes. x, y : the marks that stay visible, in the axes' units."""

    def __init__(self, axes: Axes, x: Iterable[float], y: Iterable[float]):
        self._axes = axes
        figure = axes.get_figure()
        wide, high = figure.get_size_inches()
        place = axes.get_position()
        self._size = place.width * wide * PT_PER_INCH, place.height * high * PT_PER_INCH
        self._marks = [self._mark(*self._points(a, b)) for a, b in zip(x, y, strict=True)]
        self.taken: list[Box] = []  # where words stand

    def _points(self, x: float, y: float) -> tuple[float, float]:
        (left, right), (low, high) = self._axes.get_xlim(), self._axes.get_ylim()
        return (x - left) / (right - left) * self._size[0], (y - low) / (high - low) * self._size[1]

    @staticmethod
    def _mark(x: float, y: float) -> Box:
        return Box(x - MARK_PT, y - MARK_PT, x + MARK_PT, y + MARK_PT)

    def keep_off(self, x: Sequence[float], y: Sequence[float]) -> None:
        """Let words keep away from a line through these points."""
        points = [self._points(a, b) for a, b in zip(x, y, strict=True)]
        for (a, b), (c, d) in pairwise(points):
            parts = 1 + int(max(abs(c - a), abs(d - b)) / (2 * MARK_PT))
            self._marks += [self._mark(a + (c - a) * i / parts, b + (d - b) * i / parts) for i in range(parts + 1)]

    def beside(self, x: Iterable[float], y: Iterable[float], words: str, colour: str) -> None:
        """Write the words beside one of the marks: where they cover least, and of such places at the nearest."""
        marks = [self._points(a, b) for a, b in zip(x, y, strict=True)]
        places = [(self._covered(box), away, box) for at in marks for away, box in self._places(*at, words)]
        if not places:
            return
        box = min(places)[2]
        self.taken.append(box)
        self._axes.annotate(
            words, (box.left / self._size[0], (box.low + box.high) / 2 / self._size[1]), xycoords="axes fraction",
            color=colour, fontsize=FONT_PT, va="center", ha="left", zorder=9,
        )  # fmt: skip

    def _covered(self, box: Box) -> int:
        """How much the box covers; other words count most."""
        return 8 * sum(box.meets(t) for t in self.taken) + sum(box.meets(m) for m in self._marks)

    def _places(self, x: float, y: float, words: str) -> Iterator[tuple[float, Box]]:
        """(distance, box) of places for the words around a mark that lie inside the axes."""
        wide, tall = LETTER_SHARE * FONT_PT * len(words), 1.25 * FONT_PT
        for away in AWAY_PT:
            for left, middle in (
                (x + away, y), (x + 0.6 * away, y + away), (x - wide / 2, y + away), (x - wide - away, y),
                (x - wide - 0.6 * away, y + away), (x + 0.6 * away, y - away), (x - wide / 2, y - away),
                (x - wide - 0.6 * away, y - away),
            ):  # fmt: skip
                box = Box(left, middle - tall / 2, left + wide, middle + tall / 2)
                if box.left >= 0 and box.low >= 0 and box.right <= self._size[0] and box.high <= self._size[1]:
                    yield away, box
