"""Numbers as polynomials of a size, and rows of values that follow from a few others."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rekindle.torch.serve.pattern import Pattern, alike

SIZES = ((20,), (12,), (30,), (17,))


def rows(*functions: Any) -> list[list[Any]]:
    return [[f(n) for f in functions] for (n,) in SIZES]


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 99))
def test_a_polynomial_is_found_again(a: int, b: int, c: int, size: int) -> None:
    def at(n: int) -> int:
        return a * n * n + b * n + c

    pattern = Pattern.of(SIZES, rows(at, lambda n: float(at(n)), lambda n: "fixed"))
    assert pattern is not None
    assert pattern.at((size,)) == [at(size), float(at(size)), "fixed"]
    assert pattern.holds((size,), [at(size), float(at(size)), "fixed"])
    assert not pattern.holds((size,), [at(size) + 1, float(at(size)), "fixed"])
    assert not pattern.holds((size,), [at(size), at(size), "fixed"])  # another type
    assert not pattern.holds((size,), [at(size), float(at(size))])


@pytest.mark.parametrize(
    "function",
    [
        lambda n: n**3,
        lambda n: n % 7,
        lambda n: n**0.5,
        lambda n: n > 15,
        lambda n: str(n),
        lambda n: float("nan") if n > 15 else 0.0,
        lambda n: float("inf") * n if n > 15 else 1.0,
        lambda n: 0.0 if n > 15 else -0.0,
        lambda n: n if n > 15 else float(n),
        lambda n: torch.Size([n]),
    ],
)
def test_values_that_follow_no_polynomial_have_no_pattern(function: Any) -> None:
    assert Pattern.of(SIZES, rows(function)) is None


def test_a_polynomial_is_confirmed_by_one_more_size() -> None:
    squares, lines = rows(lambda n: n * n + n + 1), rows(lambda n: 3 * n + 1)
    assert Pattern.of(SIZES[:3], squares[:3]) is None
    assert Pattern.of(SIZES, squares) is not None
    assert Pattern.of(SIZES[:2], lines[:2]) is None
    assert Pattern.of(SIZES[:3], lines[:3]) is not None
    assert Pattern.of(SIZES[:2], lines[:2], spare=0) is not None


def test_rows_of_other_lengths_and_equal_sizes_have_no_pattern() -> None:
    assert Pattern.of(SIZES[:3], [[1], [1], [1, 1]]) is None
    assert Pattern.of(((1,), (2,), (2,)), [[1], [2], [2]]) is None


def test_a_number_that_would_not_be_whole_is_none() -> None:
    pattern = Pattern.of(((2,), (4,), (6,)), [[1], [2], [3]])
    assert pattern is not None
    assert pattern.at((8,)) == [4]
    assert pattern.at((5,)) is None


# -- two and three sizes ---------------------------------------------------------------------------------------------------
FORMULAS: list[Any] = [
    lambda b, s, t: s,
    lambda b, s, t: 4 * b * s * t,
    lambda b, s, t: s + t,
    lambda b, s, t: 16 * b * (s + 1),
    lambda b, s, t: 2 * s - 1,
    lambda b, s, t: 8 * b * t * t,
    lambda b, s, t: float(b * t),
]


@pytest.mark.parametrize("seed", range(40))
def test_numbers_that_depend_on_three_sizes_are_found_again(seed: int) -> None:
    chosen = random.Random(seed)
    *known, new = [tuple(chosen.randint(2, 60) for _ in range(3)) for _ in range(6)]
    pattern = Pattern.of(known, [[f(*p) for f in FORMULAS] for p in known])
    assert pattern is not None
    assert pattern.at(new) == [f(*new) for f in FORMULAS]
    assert pattern.holds(new, [f(*new) for f in FORMULAS])


def test_four_points_tell_two_sizes_apart() -> None:
    known = [(16, 40), (62, 8), (24, 11), (39, 32)]
    formulas = [lambda s, t: 32 * s * t, lambda s, t: s + t, lambda s, t: s + 1, lambda s, t: 8 * t * t, lambda s, t: 7]
    pattern = Pattern.of(known, [[f(*p) for f in formulas] for p in known])
    assert pattern is not None
    for new in [(9, 28), (56, 4), (20, 20), (1, 1)]:
        assert pattern.at(new) == [f(*new) for f in formulas]
        assert pattern.holds(new, [f(*new) for f in formulas])
        assert not pattern.holds(new, [f(*new) for f in formulas[:-1]] + [8])


def test_sizes_that_were_equal_by_chance_are_not_told_apart() -> None:
    pattern = Pattern.of([(n, n) for n in (4, 9, 20, 33)], [[8 * n] for n in (4, 9, 20, 33)])
    assert pattern is not None
    assert pattern.at((5, 5)) == [40]
    assert pattern.at((5, 7)) is None
    assert pattern.holds((5, 7), [40])
    assert pattern.holds((5, 7), [56])
    assert not pattern.holds((5, 7), [48])


def test_rows_are_alike_apart_from_whole_numbers() -> None:
    assert alike([1, 2.0, "a", True], [3, 4.0, "a", True])
    for other in ([1, 2.5, "a", True], [1, 2.0, "b", True], [1, 2.0, "a", False], [1.0, 2.0, "a", True], [1]):
        assert not alike([1, 2.0, "a", True], other)
