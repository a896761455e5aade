"""The commands that list what others take by name: `solvers` and `zoo`. They import no torch."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from ..errors import UsageError
from ..planning import registry
from ..problem import Solver
from ..show import text
from ..zoo import SUITES, listing
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
Suite = Annotated[str | None, typer.Option(metavar="NAME", help=f"Only the models of this suite: {', '.join(SUITES)}.")]


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


def zoo(suite: Suite = None, json: Json = False) -> Answer:
    """List the models of the zoo: suite, default batch, parameters. Commands take them as zoo:NAME."""
    if suite is not None and suite not in SUITES:
        raise UsageError(f"--suite {suite!r} is unknown; choose one of {', '.join(SUITES)}")
    models = [m for m in listing() if suite in (None, m.suite)]
    return Answer({"models": [asdict(m) for m in models]}, lambda: [text.zoo_table(models)])
