"""How far estimates were from measured steps: the error band that every estimate prints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Band:
    """The largest errors found, as shares of the measured peak.

    low, high : (estimated - measured) / measured, at their extremes. steps : measured steps. source : the file of their
        figures.
    """

    low: float
    high: float
    steps: int
    source: str

    @property
    def words(self) -> str:
        """ "-0.30 % to +1.20 % off in 60 measured steps"."""
        return f"{100 * self.low:+.2f} % to {100 * self.high:+.2f} % off in {self.steps} measured steps"

    def around(self, estimated: int) -> tuple[int, int]:
        """The least and the most bytes that a measured step may take, where this many were estimated."""
        return int(estimated / (1 + self.high)), int(estimated / (1 + self.low))


# `benchmarks/estimate.py` measures the steps; tests/unit/test_estimates.py holds these figures to its file.
CPU = Band(-0.0004, 0.0012, 55, "benchmarks/results/2026-11-25-estimate.jsonl")
