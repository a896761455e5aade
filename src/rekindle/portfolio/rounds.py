"""The rounds of an annealing search: each starts cooler than the one before."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Round:
    """One round of annealing chains.

    work_share : of the work of a whole sweep.
    heat : first temperature, in units of the plain step's cost.
    """

    work_share: float
    heat: float
