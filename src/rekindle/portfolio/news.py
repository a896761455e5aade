"""One line of news about a search: the best entry so far, and how far it is from what is certified."""

from __future__ import annotations

from collections.abc import Callable

from .. import bounds
from ..problem import Problem, choose
from ..sizes import format_bytes
from ..structure.archive import Entry


def teller(problem: Problem) -> Callable[[list[Entry]], None]:
    """A function that reports the best entry so far, and how far it is from the certified bound."""
    g, w = problem.graph, problem.weights
    least_extra, least_peak = 0.0, bounds.single_op(g).bytes
    if problem.limit is not None:
        least_extra = bounds.extras_at(g, w, [problem.limit])[0]
    elif problem.max_overhead is not None:
        least_peak = bounds.at_overhead(g, w, problem.max_overhead).bytes

    def tell(found: list[Entry]) -> None:
        best = choose(problem, found)[0]
        peak, once = best.peak + g.resident_bytes, problem.base_cost or 1.0
        line = f"auto: {format_bytes(peak)} at +{best.extra / once:.2%}; "
        if problem.limit is not None and peak <= problem.limit:
            problem.progress(line + f"certified: no plan within the budget below +{least_extra / once:.2%}")
        else:
            problem.progress(
                line + f"certified: none below {format_bytes(least_peak)}, gap {1 - least_peak / max(1, peak):.1%}"
            )

    return tell
