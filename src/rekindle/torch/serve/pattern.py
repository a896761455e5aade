"""Sequences of values as functions of a few sizes: how constants and shapes of a step depend on its lengths and batch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, groupby, product
from math import isfinite, prod
from typing import Any

import numpy as np

POWER_MOST = 2  # of one size: attention scores have batch times length times length elements,
DEGREE_MOST = 3  # which is three sizes in all
TERMS_MOST = 4  # of a polynomial; a guess
DENOMINATOR_MOST = 64  # of a coefficient: a layer may halve a size. A guess
Sizes = tuple[int, ...]
Polynomial = tuple[tuple[Fraction, Sizes], ...]  # (coefficient, power of each size) for each term


@dataclass(frozen=True)
class Pattern:
    """Values of which some are polynomials of a few sizes, and all others are the same for all sizes.

    fixed : the values at the first sizes.
    varying : (type of the number, polynomials that explain it, equally simple) -> the indices of such numbers. Thousands of
        numbers share a few.
    """

    fixed: tuple[Any, ...]
    varying: dict[tuple[type, tuple[Polynomial, ...]], list[int]]

    @classmethod
    def of(cls, sizes: Sequence[Sizes], rows: Sequence[Sequence[Any]], spare: int = 1) -> Pattern | None:
        """The pattern of the rows, one for each of the `sizes`, which are tuples of one length; None: they follow none.

        Numbers that differ must be whole, and lie on a polynomial of few terms.

        spare : rows that there must be beyond the terms of a polynomial, and so confirm it.
        """
        if len(set(sizes)) != len(sizes) or len({len(r) for r in rows}) != 1:
            return None
        first, *others = rows
        columns: dict[tuple[Any, ...], list[int]] = {}
        for i, x in enumerate(first):
            if all(_same(x, row[i]) for row in others):
                continue
            kind, column = type(x), [row[i] for row in rows]
            if kind not in (int, float) or not all(
                type(y) is kind and isfinite(y) and _same(kind(int(y)), y) for y in column
            ):
                return None
            columns.setdefault((kind, *column), []).append(i)
        found = _simplest(sizes, [[int(y) for y in c[1:]] for c in columns], min(TERMS_MOST, len(sizes) - spare))
        if found is None:
            return None
        return cls(tuple(first), {(c[0], p): at for (c, at), p in zip(columns.items(), found, strict=True)})

    def at(self, sizes: Sizes) -> list[Any] | None:
        """The values for these sizes; None: a number would not be whole, or two polynomials explain it and differ here."""
        found = list(self.fixed)
        for (kind, polynomials), indices in self.varying.items():
            number, *others = {_value(p, sizes) for p in polynomials}
            if others or number.denominator != 1:
                return None
            for i in indices:
                found[i] = kind(number)
        return found

    def holds(self, sizes: Sizes, row: Sequence[Any]) -> bool:
        """Whether the row may hold the values for these sizes: of two polynomials that explain a number, either."""
        if len(row) != len(self.fixed):
            return False
        expected = list(self.fixed)
        for (kind, polynomials), indices in self.varying.items():
            may = {_value(p, sizes) for p in polynomials}
            for i in indices:
                if type(row[i]) is not kind or row[i] not in may:
                    return False
                expected[i] = row[i]
        return all(map(_same, expected, row))


def alike(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two rows have the same values, apart from whole numbers."""
    if len(one) != len(other):
        return False
    return all(
        type(x) is type(y) and _is_whole(x) and _is_whole(y) or _same(x, y) for x, y in zip(one, other, strict=True)
    )


def _is_whole(x: Any) -> bool:
    return type(x) is int or type(x) is float and x.is_integer()


def _same(x: Any, y: Any) -> bool:
    if x is y:
        return True
    if type(x) is not type(y):
        return False
    if isinstance(x, float):
        return x.hex() == y.hex()  # 0.0 and -0.0 differ
    try:
        return bool(x == y)
    except Exception:  # of a class of somebody else
        return False


def _value(polynomial: Polynomial, sizes: Sizes) -> Fraction:
    return sum((c * prod(map(pow, sizes, powers)) for c, powers in polynomial), Fraction(0))


def _simplest(
    sizes: Sequence[Sizes], columns: Sequence[Sequence[int]], most: int
) -> list[tuple[Polynomial, ...]] | None:
    """Per column of whole numbers, the polynomials of at most so many terms that give it, of the fewest terms and then of the
    lowest degrees; None: some column has none."""
    found: list[tuple[Polynomial, ...]] = [()] * len(columns)
    for terms in range(1, most + 1):
        for _, sets in groupby(_sets_of_terms(len(sizes[0]), terms), key=_degrees):
            left = [i for i, f in enumerate(found) if not f]
            if not left:
                return found
            bases = list(sets)
            exact = [[[prod(map(pow, s, powers)) for powers in basis] for s in sizes] for basis in bases]
            values = np.array(exact, float)
            scale = np.abs(values).max(axis=1, keepdims=True).clip(1)
            numbers = np.array([columns[i] for i in left], float).T
            solved = np.linalg.pinv(values / scale) @ numbers
            apart = np.abs(values / scale @ solved - numbers).max(axis=1) / np.abs(numbers).max(axis=0).clip(1)
            for b, j in zip(*np.nonzero(apart < 1e-9), strict=True):
                c = [Fraction(float(x)).limit_denominator(DENOMINATOR_MOST) for x in solved[b, :, j] / scale[b, 0]]
                rows = zip(exact[b], columns[left[j]], strict=True)
                if all(c) and all(sum(map(Fraction.__mul__, c, map(Fraction, r))) == y for r, y in rows):
                    found[left[j]] += (tuple(zip(c, bases[b], strict=True)),)
    return found if all(found) else None


@functools.cache
def _sets_of_terms(count: int, terms: int) -> list[tuple[Sizes, ...]]:
    """The sets of so many different products of so many sizes, those of low degrees first."""
    products = [p for p in product(range(POWER_MOST + 1), repeat=count) if sum(p) <= DEGREE_MOST]
    return sorted(combinations(products, terms), key=_degrees)


def _degrees(powers: Sequence[Sizes]) -> int:
    return sum(map(sum, powers))
