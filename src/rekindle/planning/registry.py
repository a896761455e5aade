"""The registry: every solver by name."""

from __future__ import annotations

import importlib
import pkgutil

from .. import portfolio, solvers
from ..arguments import close
from ..errors import UsageError
from ..printed import value
from ..problem import REGISTERED, Solver


def all_solvers() -> list[Solver]:
    """Every solver, in order of name. Each file in the two folders is imported, so that a new one is found by itself."""
    for package in (solvers, portfolio):
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
    return [REGISTERED[name] for name in sorted(REGISTERED)]


def _imported(name: object) -> bool:
    """Import the file that is called like the solver, if there is one: all files take a tenth of a second to import, and what
    they need from scipy takes longer."""
    file = name.replace("-", "_") if isinstance(name, str) else ""
    for package in (portfolio, solvers):
        if any(module.name == file for module in pkgutil.iter_modules(package.__path__)):
            importlib.import_module(f"{package.__name__}.{file}")
    return isinstance(name, str) and name in REGISTERED


def get(name: str) -> Solver:
    """The solver of that name.

    Raises
    ------
    UsageError : there is none; the message lists the valid names.
    """
    if _imported(name):
        return REGISTERED[name]
    names = {s.name: s for s in all_solvers()}
    if not isinstance(name, str) or name not in names:
        raise UsageError(f"solver={value(name)} is unknown; {close(name, names)}choose one of: {', '.join(names)}")
    return names[name]
