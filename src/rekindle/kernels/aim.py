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


class Aim(NamedTuple):
    """Limits on peak and extra cost, and how much each of the two weighs; all of them floats."""

    limit: float  # bytes, without the resident ones
    max_extra: float  # cost beyond running each op once, in units of the weights
    peak_scale: float  # bytes that count as 1
    cost_scale: float  # cost that counts as 1
    peak_weight: float
    cost_weight: float


ANY = Aim(np.inf, np.inf, 1.0, 1.0, 1.0, 1.0)  # no limit


@inner
def soft(top, extra, aim):
    """The score that annealing lowers: peak and extra cost, and by how much they pass their limits, so that a chain can
    cross points beyond them."""
    return (
        aim.peak_weight * top / aim.peak_scale
        + aim.cost_weight * extra / aim.cost_scale
        + BEYOND * max(0.0, top - aim.limit) / aim.peak_scale
        + BEYOND * max(0.0, extra - aim.max_extra) / aim.cost_scale
    )


@inner
def score(top, extra, aim):
    """The score by which the best is chosen: a point within the limits, however narrowly, comes before any beyond them."""
    beyond = top > aim.limit or extra > aim.max_extra * (1 + EPS) + 1e-12
    return soft(top, extra, aim) + (BEYOND_PENALTY if beyond else 0.0)


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
