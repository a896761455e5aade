"""The command `solvers`: a list of every solver. Imports no torch."""

from __future__ import annotations

from typing import Any

import typer

from .. import registry
from ..problem import Solver
from ..show import text
from .answer import Answer
from .options import Json


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(solvers)


def solvers(json: Json = False) -> Answer:
    """List every solver: the graphs it takes, its objective, optimality claim, complexity and citation."""
    known = registry.all_solvers()
    return Answer({"solvers": [_entry(s) for s in known]}, lambda: [text.solvers_table(known)])


def _entry(s: Solver) -> dict[str, Any]:
    return {
        "name": s.name, "graphs": s.graphs, "objective": s.objective, "optimal": s.optimal or False,
        "complexity": s.complexity, "citation": s.citation,
    }  # fmt: skip
