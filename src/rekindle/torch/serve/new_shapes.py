"""Counts the shapes for which plans were made in the middle of a run, and hints once how to meet fewer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NewShapesSettings:
    """shapes_before_hint : new shapes after which the hint is given; a last batch and one for validation are no habit.
    A guess.
    """

    shapes_before_hint: int = 4


SETTINGS = NewShapesSettings()


class NewShapes:
    """The first new shapes of one module's calls, until the hint is given."""

    def __init__(self) -> None:
        self._seen: set[Any] = set()
        self._hinted = False

    def hint(self, shapes: Any) -> str:
        """Note that a plan was made for a call of these shapes; returns the hint once enough have come, else ""."""
        if self._hinted:
            return ""
        self._seen.add(shapes)
        if len(self._seen) < SETTINGS.shapes_before_hint:
            return ""
        self._hinted, count = True, len(self._seen)
        self._seen = set()
        return (
            f"{count} new shapes so far, and each is planned at its first call. To meet fewer of them: pad lengths to a "
            "multiple (of 64, say), drop the last batch, and plan the longest one first"
        )

    def copied(self) -> NewShapes:
        """For a copy of the module."""
        twin = NewShapes()
        twin._seen, twin._hinted = set(self._seen), self._hinted
        return twin
