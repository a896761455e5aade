"""The registry: every solver by name."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable

from ..errors import UsageError
from ..graph import Graph
from .base import Solve, Solver

_SOLVERS: dict[str, Solver] = {}


def register(
    name: str,
    *,
    graphs: str,
    objective: str,
    optimal: str = "",
    complexity: str,
    citation: str,
    curve: bool = False,
    declines: Callable[[Graph], str] = lambda _: "",
) -> Callable[[Solve], Solve]:
    """Decorator that enters a function `Problem -> iterable of Schedule` under `name`."""

    def enter(solve: Solve) -> Solve:
        _SOLVERS[name] = Solver(name, solve, graphs, objective, optimal, complexity, citation, curve, declines)
        return solve

    return enter


def all_solvers() -> list[Solver]:
    """Every solver, in order of name; a new file in this folder is found by itself."""
    package = importlib.import_module(__package__ or "")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return [_SOLVERS[k] for k in sorted(_SOLVERS)]


def get(name: str) -> Solver:
    """The solver of that name.

    Raises
    ------
    UsageError : there is none; the message lists the valid names.
    """
    names = {s.name: s for s in all_solvers()}
    if not isinstance(name, str) or name not in names:
        near = difflib.get_close_matches(str(name), names)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise UsageError(f"solver={name!r} is unknown; {hint}choose one of: {', '.join(names)}")
    return names[name]
