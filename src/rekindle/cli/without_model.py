"""The commands that take no model: `solvers` and `zoo`, which list what others take by name, `warm`, and `demo`.

All but `demo` import no torch.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UsageError
from ..planning import registry
from ..planning.warming import warm as compile_ahead
from ..problem import Solver
from ..saying.progress import telling
from ..show import text
from ..zoo import SUITES, listing
from .answer import Answer, err_console, out_console
from .options import Json
from .options import solvers as solver_words

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help="Show all that is known of these solvers. Default: one line for each of all.",
        autocompletion=solver_words,
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


Folder = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write the SVG pictures to.")]
Quick = Annotated[bool, typer.Option("--quick", help="Take smaller models and fewer steps.")]


def demo(out: Folder = Path("."), quick: Quick = False, json: Json = False) -> Answer:
    """Plan a ResNet-50 and a small GPT at half their activation memory; train both plain and planned; compare."""
    from ..demo import run

    result = run(out, err_console() if json else out_console(), quick)
    verdict = "bitwise equal, and within budget" if result["ok"] else "NOT as promised: see the tables above"
    return Answer(result, lambda: [f"{verdict}; {result['seconds']:.0f} s in all"], 0 if result["ok"] else 1)


All = Annotated[bool, typer.Option("--all", help="Compile the kernels of every solver, not only those of auto.")]


def warm(every_solver: All = False, json: Json = False) -> Answer:
    """Compile the search ahead, so that the first plan does not wait for it: for images of machines and for CI."""
    with telling(None) as tell:
        made = compile_ahead(every_solver, tell)
    document = {"kernels": made.kernels, "seconds": made.seconds, "folder": made.folder}
    return Answer(document, lambda: [made.sentence])
