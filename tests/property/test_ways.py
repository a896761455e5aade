"""The ways of a part that are offered to the division of a goal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.graph import Link
from rekindle.parts.ways import Figures, Saves, Way, best, thinned, with_copies

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


@given(
    st.lists(st.integers(1, 50), max_size=6), st.integers(0, 40), st.integers(0, 40), st.sampled_from([0.25, 1.0, 4.0])
)
def test_a_way_that_copies_holds_less_and_waits_for_what_nothing_hides(
    sizes: list[int], forward: int, backward: int, rate: float
) -> None:
    link, kept = Link(rate, 2 * rate, 0.5), [way(sum(sizes), 400, 0.0), way(30, 400, 7.0)]
    saves = Saves(tuple(sizes), (3,), float(forward), float(backward))
    found = with_copies(kept, [saves, None], link)
    assert found[0] is kept[0]
    copying = [w for w in found if w.offloaded is not None]
    assert not sizes or copying
    for w in copying:
        n, f = w.offloaded.bytes, w.figures
        assert (f.held_bytes + n, f.away_bytes, f.forward_bytes, f.backward_bytes) == (
            sum(sizes),
            n,
            *kept[0].figures.bytes[1:3],
        )
        count = sizes_that_make(sizes, n)
        waits = max(0.0, 0.5 * count + n / rate - forward) + max(0.0, 0.5 * count + n / (2 * rate) - backward)
        assert f.extra >= waits
        assert f.extra <= waits + len(sizes)


def sizes_that_make(sizes: list[int], room: int) -> int:
    """How many of the sizes are taken where each is that still fits."""
    left, count = room, 0
    for size in sizes:
        if size <= left:
            left, count = left - size, count + 1
    assert left == 0  # a step with that room takes the same ones
    return count
