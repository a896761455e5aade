"""Rows of a linear program, collected term by term."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint


class Rows:
    """Rows of A y <= b."""

    def __init__(self) -> None:
        self.right: list[float] = []
        self._row: list[int] = []
        self._column: list[int] = []
        self._factor: list[float] = []

    def add(self, terms: Iterable[tuple[int, float]], right: float) -> None:
        """Enter one row. terms : (column, factor); factors of the same column are added up."""
        for column, factor in terms:
            self._row.append(len(self.right))
            self._column.append(column)
            self._factor.append(factor)
        self.right.append(right)

    def constraint(self, columns: int) -> LinearConstraint:
        """The rows for `scipy.optimize.milp`."""
        from scipy.optimize import LinearConstraint  # here, since importing it takes as long as all of rekindle
        from scipy.sparse import coo_matrix

        shape = len(self.right), columns
        matrix = coo_matrix((self._factor, (self._row, self._column)), shape=shape).tocsr()
        return LinearConstraint(matrix, -np.inf, np.array(self.right))
