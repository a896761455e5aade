"""The command `solvers`: every solver in one line, or the details of some. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .. import registry
from ..problem import Solver
from ..show import text
from . import completing
from .answer import Answer
from .options import Json

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help="Show all that is known of these solvers. Default: one line for each of all.",
        autocompletion=completing.solvers,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(solvers)


def solvers(names: Names = None, json: Json = False) -> Answer:
    """List every solver in a line; with names: the objective, optimality claim, complexity and citation of each."""
    known = [registry.get(name) for name in names] if names else registry.all_solvers()
    document = {"solvers": [_entry(s) for s in known]}
    if names:
        return Answer(document, lambda: [text.solver_table(s) for s in known])
    return Answer(document, lambda: [text.solvers_table(known), "", "`rekindle solvers NAME` says more."])


def _entry(s: Solver) -> dict[str, Any]:
    return {
        "name": s.name, "graphs": s.graphs, "objective": s.objective, "optimal": s.optimal or False,
        "complexity": s.complexity, "citation": s.citation,
    }  # fmt: skip
