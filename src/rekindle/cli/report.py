"""The command `report`: a plan file as one HTML page. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..printed import name, value
from ..progress import announce, telling
from ..show.report.curve import Frontier, points_of_file
from ..show.report.make import proven, write_report
from .answer import Answer, Whole
from .models import is_stream, load_plan
from .options import Json, check_writable

PlanFile = Annotated[
    Path, typer.Argument(metavar="PLAN", help="A plan file, as `rekindle plan --out` or plan.save writes it.")
]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="File to write. Default: the plan's name with .html.")]
Curve = Annotated[
    str,
    typer.Option("--frontier", metavar="NAME",
                 help="The memory/time curve to show: auto (searched for where that is quick), quick (a search of a few "
                      "seconds), none, or a file of `rekindle frontier --out`."),
]  # fmt: skip
SEARCHES: dict[str, Frontier] = {"auto": None, "quick": True, "none": False}


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(report)


def report(plan: PlanFile, html: Html = None, frontier: Curve = "auto", json: Json = False) -> Answer:
    """Show a plan file as one HTML page: memory over time, holders of the peak, the curve, what is recomputed."""
    if frontier not in SEARCHES and not frontier.endswith(".json"):
        raise UsageError(
            f"--frontier {value(frontier)} is unknown; choose one of {', '.join(SEARCHES)}, or name a .json file"
        )
    if html is None and is_stream(plan):
        raise UsageError("the plan is read from a stream, which gives its report no name; name a file with --html")
    target = html if html is not None else plan.with_suffix(".html")
    check_writable(target, reads=[plan, None if frontier in SEARCHES else frontier])
    with telling(None):
        made = load_plan(plan)
        if made.kind == "step":
            made = proven(made)
            curve = SEARCHES[frontier] if frontier in SEARCHES else points_of_file(frontier, made)
        elif frontier in SEARCHES:
            curve = SEARCHES[frontier]
        else:
            raise UsageError(
                "a frontier file holds one curve, and this plan has one for each part; give --frontier quick"
            )
        announce(None, "writing the report")
        write_report(made, target, curve)
    document = {"html": str(target), "bytes": target.stat().st_size, "verdict": made.sentence}
    return Answer(document, lambda: [made.sentence, Whole(f"wrote {name(str(target))}")])
