"""The figures of one way to run a part of a model, which the division of a goal among parts needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figures:
    """What one way to run a part takes, beside what is held around the part.

    held_bytes : held from the end of its forward to the beginning of its backward.
    forward_bytes, backward_bytes : the most that the part holds while its forward or its backward runs. Results and bytes held
        count; gradients that come from outside do not.
    extra : cost beside the plain cost. plain : cost of the part where nothing is recomputed.
    """

    held_bytes: int
    forward_bytes: int
    backward_bytes: int
    extra: float
    plain: float = 0.0

    @property
    def bytes(self) -> tuple[int, int, int]:
        """(held, forward, backward) bytes."""
        return self.held_bytes, self.forward_bytes, self.backward_bytes

    def matches(self, other: Figures) -> bool:
        """Whether no figure of this way is worse than the other way's."""
        return self.extra <= other.extra and all(a <= b for a, b in zip(self.bytes, other.bytes, strict=True))
