"""The goal of a search as a number to lower: soft while a chain is under way, strict to choose the best.

`soft` and `score` also run as plain Python, as fast as a kernel takes its arguments apart.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..saying.shares import EPS
from .compiled import inner

BEYOND = 20.0  # weight in the soft score of peak and cost beyond their limits
BEYOND_PENALTY = 1000.0  # in the strict score of any point beyond a limit


class Objective(NamedTuple):
    """Limits on peak and extra cost, and how much each of the two weighs; all of them floats."""

    limit: float  # bytes, without the resident ones
    max_extra: float  # cost beyond running each op once, in units of the weights
    peak_scale: float  # bytes that count as 1
    cost_scale: float  # cost that counts as 1
    peak_weight: float
    cost_weight: float


ANY = Objective(np.inf, np.inf, 1.0, 1.0, 1.0, 1.0)  # no limit


@inner
def soft(top, extra, objective):
    """The score that annealing lowers: peak and extra cost, and by how much they pass their limits, so that a chain can
    cross points beyond them."""
    return (
        objective.peak_weight * top / objective.peak_scale
        + objective.cost_weight * extra / objective.cost_scale
        + BEYOND * max(0.0, top - objective.limit) / objective.peak_scale
        + BEYOND * max(0.0, extra - objective.max_extra) / objective.cost_scale
    )


@inner
def score(top, extra, objective):
    """The score by which the best is chosen: a point within the limits, however narrowly, comes before any beyond them."""
    beyond = top > objective.limit or extra > objective.max_extra * (1 + EPS) + 1e-12
    return soft(top, extra, objective) + (BEYOND_PENALTY if beyond else 0.0)


@inner
def bin_of(edges, top):
    """The first of the rising `edges` that is at least `top`; len(edges) where none is. As np.searchsorted, which takes numba
    longer to compile."""
    low, high = 0, len(edges)
    while low < high:
        middle = (low + high) >> 1
        if edges[middle] < top:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def copy_to(target, source):
    """Copy a row of numbers of the same length; as a slice that is assigned to it takes numba longer to compile."""
    for i in range(len(target)):
        target[i] = source[i]
