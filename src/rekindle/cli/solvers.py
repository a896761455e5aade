"""`solvers`: what there is to choose from. Needs no torch."""

from __future__ import annotations

from typing import Any

import typer

from .. import registry
from ..problem import Solver
from ..show import text
from .answer import Answer
from .options import Json


def register(app: typer.Typer) -> None:
    """Enter the command of this file."""
    app.command()(solvers)


def solvers(json: Json = False) -> Answer:
    """Every solver: problem, objective, complexity, optimality, citation."""
    known = registry.all_solvers()
    return Answer({"solvers": [_entry(s) for s in known]}, lambda: [text.solvers_table(known)])


def _entry(s: Solver) -> dict[str, Any]:
    return {
        "name": s.name, "graphs": s.graphs, "objective": s.objective, "optimal": s.optimal or False,
        "complexity": s.complexity, "citation": s.citation,
    }  # fmt: skip
