"""Candidates of the planner: which one a goal picks, which ones make a frontier."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rekindle.ask import Aim
from rekindle.model.judge import Simulation
from rekindle.model.schedule import Schedule
from rekindle.planning.candidates import Scored, pareto, pick, smaller, thin


def scored(peak: int, overhead: float, needs: int | None = None) -> Scored:
    none = np.zeros(0, np.int64)
    judged = Simulation(peak, 0, none, none, 1 + overhead, 0, overhead, 0.0)
    return Scored(Schedule((), "hash", f"{peak} {overhead}"), judged, peak if needs is None else needs)


figures = st.lists(st.tuples(st.integers(0, 8), st.sampled_from([0.0, 0.1, 0.2, 0.5])), min_size=1, max_size=8)


@given(figures)
def test_a_frontier_holds_what_no_other_matches(drawn: list[tuple[int, float]]) -> None:
    kept = [(s.judged.peak_bytes, s.judged.overhead) for s in pareto([scored(*x) for x in drawn])]
    best = {a for a in drawn if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in drawn)}
    assert kept == sorted(best, reverse=True)


@given(figures, st.integers(0, 8), st.sampled_from([0.0, 0.1, 0.3]))
def test_the_pick_serves_the_goal_best(drawn: list[tuple[int, float]], limit: int, most: float) -> None:
    found = [scored(*x) for x in drawn]
    within = pick(found, Aim(limit=limit))
    fit = [(o, p) for p, o in drawn if p <= limit]
    assert within is None if not fit else (within.judged.overhead, within.judged.peak_bytes) == min(fit)  # type: ignore[union-attr]
    least = pick(found, Aim(max_overhead=most))
    cheap = [x for x in drawn if x[1] <= most]
    assert least is None if not cheap else (least.judged.peak_bytes, least.judged.overhead) == min(cheap)  # type: ignore[union-attr]
    anything = pick(found, Aim())
    assert anything is not None
    assert (anything.judged.peak_bytes, anything.judged.overhead) == min(drawn)


@pytest.mark.parametrize(
    ("two", "taken"),
    [
        (scored(9, 0.1), True),
        (scored(10, 0.1), False),  # no lower
        (scored(9, 0.2), False),  # dearer
        (scored(9, 0.1, needs=21), False),  # beyond the limit
        (scored(9, 0.1, needs=20), True),
    ],
)
def test_a_smaller_candidate_that_costs_no_more(two: Scored, taken: bool) -> None:
    one = scored(10, 0.1)
    assert smaller(one, two, 20) is (two if taken else one)


@given(st.sets(st.integers(0, 10**6), min_size=1, max_size=40), st.integers(2, 12))
@example({0, 1, 2}, 2)  # the logarithm takes 0 for 1
def test_a_thinned_frontier_keeps_both_ends_and_is_even(peaks: set[int], most: int) -> None:
    kept = [scored(p, -float(p)) for p in sorted(peaks, reverse=True)]
    left = thin(kept, most)
    assert len(left) <= max(most, 2)
    assert (left[0], left[-1]) == (kept[0], kept[-1])
    assert [s for s in kept if s in left] == left
    if len(kept) <= most:
        assert left == kept
    else:  # each place of an even spread has its nearest one
        logs = np.log([max(1, s.judged.peak_bytes) for s in kept])
        for at in np.linspace(logs[0], logs[-1], most):
            assert min(np.abs(logs[[kept.index(s) for s in left]] - at)) == min(np.abs(logs - at))
