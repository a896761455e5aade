"""Shares of a cost as people read them, and the words for each unit of cost."""

from __future__ import annotations

import math

# Costs that differ by no more than this share of the plain step's cost are equal: sums of floats differ by their order.
EPS = 1e-9
# Unit of the extra cost -> its name in a sentence.
COST_WORDS = {"seconds": "step time", "flops": "FLOPs", "unit": "op runs"}


def percent(x: float) -> str:
    """A share as a change: "+12.3 %" for 0.1234."""
    return f"{round(x, 3) + 0.0:+.1%}".replace("%", " %")  # adding 0.0 makes -0.0 positive


def percent_down(x: float) -> str:
    """A share that was proven from below, never rounded up: "+12.9 %" for 0.1299."""
    return percent(math.floor(x * 1000 + 1e-6) / 1000)
