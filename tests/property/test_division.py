"""The division of a goal among parts, held against trying every choice."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.parts.division import OPEN, Moment, Step, _Program, divide
from rekindle.parts.ways import Figures


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Steps of up to four parts, some inside of others, whose forwards and backwards come in order. Ways may copy bytes to the
    host, inputs that others count among them, and the host may have little room."""
    count = draw(st.integers(1, 4))
    within = [draw(st.one_of(st.none(), st.sampled_from(range(p)))) if p else None for p in range(count)]
    size = st.integers(0, 40)
    parts = []
    for p in range(count):
        others = [
            Figures(draw(size), draw(size), draw(size), draw(st.integers(1, 9))) for _ in range(draw(st.integers(1, 3)))
        ]
        first = (
            Figures(0, 0, 0, 0) if p in within else Figures(draw(size), draw(size), draw(size), draw(st.integers(0, 3)))
        )
        copied = [
            replace(f, held_bytes=f.held_bytes - n, away_bytes=n, extra=f.extra + 1)
            for f in others if (n := draw(st.integers(0, 20)))
        ]  # fmt: skip
        parts.append([first, *others, *copied])
    moments = []
    for p in range(count):
        held = tuple((q, "near" if q == p - 1 else "held") for q in range(p))
        inside = tuple((q, draw(size)) for q in range(p + 1) if q in within)
        moments += [Moment(draw(size), (*held, (p, phase)), inside) for phase in ("forward", "backward")]
    host = draw(st.sampled_from([math.inf, 0, 15, 30]))
    return Step(parts, [draw(st.integers(1, 2)) for _ in range(count)], moments, within, host)


def every_choice(step: Step) -> list[tuple[int, float]]:
    """(peak, extra cost) of each choice that the host has room for."""
    choices = itertools.product(*(range(len(w)) for w in step.parts))
    return [(step.peak(c), step.extra(c)) for c in choices if step.fits_host(c)]


@given(steps(), st.integers(0, 250))
def test_of_a_budget_no_choice_costs_less(step: Step, budget: int) -> None:
    fit = [extra for peak, extra in every_choice(step) if peak <= budget]
    found = divide(step, budget=budget)
    assert (found is None) == (not fit)
    if found is not None:
        assert found.peak_bytes == step.peak(found.chosen) <= budget
        assert step.fits_host(found.chosen)
        assert found.extra == step.extra(found.chosen) == pytest.approx(min(fit), rel=5e-3)
        assert found.bound <= min(fit) + 1e-6


@given(steps(), st.integers(0, 20))
def test_of_an_overhead_no_choice_takes_less(step: Step, most: int) -> None:
    fit = [peak for peak, extra in every_choice(step) if extra <= most]
    found = divide(step, most_extra=most)
    assert (found is None) == (not fit)
    if found is None:
        return
    assert step.extra(found.chosen) <= most
    assert found.peak_bytes == step.peak(found.chosen) == pytest.approx(min(fit), rel=5e-3)
    assert found.bound <= min(fit) + 1e-3


@given(steps())
def test_least_memory(step: Step) -> None:
    found = divide(step)
    assert found is not None
    assert found.peak_bytes == pytest.approx(min(peak for peak, _ in every_choice(step)), rel=5e-3)


def test_equal_parts_in_a_row_get_different_ways() -> None:
    """The last part of a chain may save all, since nothing runs on top of what it holds."""
    ways = [Figures(10, 10, 10, 0.0), Figures(0, 10, 10, 1.0)]
    moments = [
        Moment(0, (*((q, "held") for q in range(p)), (p, phase))) for p in range(4) for phase in ("forward", "backward")
    ]
    found = divide(Step([ways] * 4, [1] * 4, moments, [None] * 4), budget=20)
    assert found is not None
    assert found.extra == 2.0
    assert found.chosen[3] == OPEN


def test_a_part_that_is_run_again_whole_has_no_parts() -> None:
    around = [Figures(0, 0, 0, 0.0), Figures(0, 5, 5, 1.0)]
    inner = [Figures(9, 9, 9, 0.0), Figures(0, 9, 9, 3.0)]
    step = Step([around, inner], [1, 1], [Moment(0, ((0, "held"), (1, "held")), ((0, 4),))], [None, 0])
    found = divide(step, budget=3)
    assert found is not None
    assert (found.chosen[0], found.extra, found.peak_bytes) == (1, 1.0, 0)


@given(st.data())
def test_of_many_equal_parts_the_cost_is_nearly_the_least(data: st.DataObject) -> None:
    """Held against a dynamic program over the bytes that the parts before hold."""
    count, plain = 24, 12.0
    size = st.integers(0, 12)
    sizes = data.draw(st.lists(st.tuples(size, size, size, st.integers(1, 30)), min_size=1, max_size=6))
    ways = [Figures(12, 14, 14, 0.0, plain), *(Figures(h, h + f, h + b, e / 10, plain) for h, f, b, e in sizes)]
    moments = [
        Moment(0, (*((q, "held") for q in range(p)), (p, phase)))
        for p in range(count)
        for phase in ("forward", "backward")
    ]
    budget = data.draw(st.integers(20, 12 * count))
    least = {0: 0.0}  # bytes held by the parts before -> the least cost
    for _ in range(count):
        after: dict[int, float] = {}
        for held, extra in least.items():
            for w in ways:
                if held + max(w.forward_bytes, w.backward_bytes) <= budget:
                    more = held + w.held_bytes
                    after[more] = min(after.get(more, np.inf), extra + w.extra)
        least = after
    found = divide(Step([ways] * count, [1] * count, moments, [None] * count), budget=budget)
    assert (found is None) == (not least)
    if found is not None:
        best = min(least.values())
        assert best - 1e-6 <= found.extra <= 1.01 * best + 5e-4 * count * plain + 1e-6
        assert found.bound <= best + 1e-6


def test_moments_that_bind_nothing_are_left_out() -> None:
    """Of a chain, the forwards take less than the backwards, and so bind nothing; the same peaks are found without them."""
    ways = [Figures(40, 50, 60, 0.0, 100.0), Figures(10, 30, 50, 20.0, 100.0)]
    count = 12
    held = [tuple((q, "held") for q in range(p)) for p in range(count)]
    moments = [Moment(5, (*held[p], (p, phase))) for p in range(count) for phase in ("forward", "backward")]
    step = Step([ways] * count, [1] * count, moments, [None] * count)
    program = _Program(step)
    assert len(program.rows) < len(moments) / 2
    for chosen in ([0] * count, [1] * count, [0, 1] * (count // 2), [1, 0] * (count // 2)):
        picked = [int(program.first[p]) + c for p, c in enumerate(chosen)]
        assert (program.rows[:, picked].sum(axis=1) + program.outside).max() == step.peak(chosen)
