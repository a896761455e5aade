"""The rule by which a part that runs again in backward saves some results of its operators."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class SaveRule:
    """A part that runs again saves the results that are dear for their bytes, and recomputes the others.

    least : FLOPs that made one byte of a result, from which on it is saved.
    """

    least: float

    def is_valid(self) -> bool:
        """Whether the number is finite and positive: a rule that saves every result saves nothing."""
        return math.isfinite(self.least) and self.least > 0

    def to_json(self) -> dict[str, float]:
        """The rule as it stands in a file."""
        return {"least": self.least}
