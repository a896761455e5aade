"""The ways of a part that are offered to the division of a goal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rekindle.parts.ways import Figures, Way, best, thinned

MOST = 20


def way(held: int, peak: int, extra: float) -> Way:
    return Way(None, Figures(held, min(held + 5, peak), peak, extra, 100.0))


def cheapest(ways: list[Way], peak: float) -> float:
    return min((w.figures.extra for w in ways if max(w.figures.bytes) <= peak), default=float("inf"))


@given(st.integers(30, 60), st.integers(2, 20))
def test_both_curves_stay_fine_where_ways_are_thinned(count: int, jump: int) -> None:
    """Ways of few bytes held have high peaks; those of low peaks hold more. Budgets near the lowest peak find ways too."""
    few_held = [way(1000 - 16 * i, 1100 + i, float(i)) for i in range(count)]
    low_peak = [way(1010 - 8 * i, 1050 - 8 * i, i + 0.5) for i in range(count)]
    dear = way(low_peak[-1].figures.held_bytes - 9, max(low_peak[-1].figures.bytes) - 9, 100.0 * jump)
    every = best([*few_held, *low_peak, dear])
    kept = thinned(every, MOST)
    assert len(kept) <= MOST
    assert kept[0] is every[0]
    lowest, highest = (f(max(w.figures.bytes) for w in every) for f in (min, max))
    step = (highest - lowest) / 4
    for w in low_peak:
        peak = max(w.figures.bytes)
        assert cheapest(kept, peak + step) <= cheapest(every, peak)
