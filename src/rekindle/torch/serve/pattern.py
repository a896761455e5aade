"""Sequences of values as functions of one size: how constants and shapes of a step depend on its length or batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Any

DEGREE_MOST = 2  # of a polynomial in the size: attention scores have length times length elements


@dataclass(frozen=True)
class Pattern:
    """Values of which some are polynomials of one size, and all others are the same for every size.

    fixed : the values at the first size. sizes : the nodes of the polynomials.
    varying : (type of the number, coefficients by Newton) -> the indices of such numbers. Thousands of numbers share a few.
    """

    fixed: tuple[Any, ...]
    varying: dict[tuple[type, tuple[Fraction, ...]], list[int]]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], rows: Sequence[Sequence[Any]], spare: int = 1) -> Pattern | None:
        """The pattern of the rows, one for each size; None: they follow none.

        Numbers that differ must be whole, and lie on a polynomial of at most `DEGREE_MOST`.

        spare : sizes that there must be beyond the coefficients of a polynomial, and so confirm it.
        """
        if len(set(sizes)) != len(sizes) or len({len(r) for r in rows}) != 1:
            return None
        first, *others = rows
        varying: dict[tuple[type, tuple[Fraction, ...]], list[int]] = {}
        columns: dict[tuple[Any, ...], tuple[Fraction, ...]] = {}
        for i, x in enumerate(first):
            if all(_same(x, row[i]) for row in others):
                continue
            kind, column = type(x), [row[i] for row in rows]
            if kind not in (int, float) or not all(
                type(y) is kind and isfinite(y) and _same(kind(int(y)), y) for y in column
            ):
                return None
            key = tuple(column)
            coefficients = columns.get(key) or columns.setdefault(key, _newton(sizes, column))
            if len(coefficients) > min(DEGREE_MOST + 1, len(sizes) - spare):
                return None
            varying.setdefault((kind, coefficients), []).append(i)
        return cls(tuple(first), varying, tuple(sizes))

    def at(self, size: int) -> list[Any] | None:
        """The values for a size; None: one of the numbers would not be whole."""
        found = list(self.fixed)
        for (kind, coefficients), indices in self.varying.items():
            total, factor = Fraction(0), Fraction(1)
            for c, node in zip(coefficients, self.sizes, strict=False):
                total += c * factor
                factor *= size - node
            if total.denominator != 1:
                return None
            number = kind(total)
            for i in indices:
                found[i] = number
        return found

    def holds(self, size: int, row: Sequence[Any]) -> bool:
        """Whether the row holds the values for this size."""
        expected = self.at(size)
        return expected is not None and len(expected) == len(row) and all(map(_same, expected, row))


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


def _newton(sizes: Sequence[int], column: Sequence[Any]) -> tuple[Fraction, ...]:
    """The divided differences of the numbers, without trailing zeros."""
    row = [Fraction(int(y)) for y in column]
    found = [row[0]]
    for k in range(1, len(sizes)):
        row = [(row[j + 1] - row[j]) / (sizes[j + k] - sizes[j]) for j in range(len(row) - 1)]
        found.append(row[0])
    while found and not found[-1]:
        found.pop()
    return tuple(found)
