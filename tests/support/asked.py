"""The problems that a solver is asked."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rekindle.planning.registry import all_solvers
from rekindle.problem import REGISTERED, Problem


@contextmanager
def searches(name: str) -> Iterator[list[Problem]]:
    """The problems that this solver is asked meanwhile."""
    all_solvers()
    asked: list[Problem] = []
    solver = REGISTERED[name]

    @functools.wraps(solver.solve)
    def noted(problem: Problem) -> Any:
        asked.append(problem)
        return solver.solve(problem)

    REGISTERED[name] = replace(solver, solve=noted)
    try:
        yield asked
    finally:
        REGISTERED[name] = solver
