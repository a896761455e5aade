"""The commands that read plan files: `explain`, `compare` and `report`. They import no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..explain.comparison import compare as compare_plans
from ..model.files import write_text
from ..printed import name, value
from ..saying.progress import announce, telling
from ..show.compared import compared_view
from ..show.report.curve import Frontier, points_of_file
from ..show.report.make import proven, write_report
from .answer import Answer, Unbroken
from .models import is_stream, load_plan
from .options import Json, Out, check_writable

PlanFile = Annotated[
    Path, typer.Argument(metavar="PLAN", help="A plan file, as `rekindle plan --out` or plan.save writes it.")
]
PlanA = Annotated[Path, typer.Argument(metavar="PLAN_A", help="A plan file.")]
PlanB = Annotated[Path, typer.Argument(metavar="PLAN_B", help="The plan file to set beside it.")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="File to write. Default: the plan's name with .html.")]
Curve = Annotated[
    str,
    typer.Option("--frontier", metavar="NAME",
                 help="The memory/time curve to show: auto (searched for where that is quick), quick (a search of a few "
                      "seconds), none, or a file of `rekindle frontier --out`."),
]  # fmt: skip
SEARCHES: dict[str, Frontier] = {"auto": None, "quick": True, "none": False}


def explain(plan: PlanFile, out: Out = None, json: Json = False) -> Answer:
    """Explain a plan by module: kept, recomputed, MiB saved, ms added, and who holds the peak.

    Repeated layers are one row. --out writes what is printed to a text file.
    """
    check_writable(out, reads=[plan])
    with telling(None):
        read = load_plan(plan)
        announce(None, f"explaining {name(str(plan))}")
        explanation = read.explain()
    if out is not None:
        write_text(out, f"{explanation}\n")
    wrote = [] if out is None else [Unbroken(f"wrote {name(str(out))}")]
    return Answer(explanation.to_json(), lambda: [Unbroken(str(explanation)), *wrote])


def compare(a: PlanA, b: PlanB, json: Json = False) -> Answer:
    """Set two plans side by side: figures, the modules that differ, and where their graphs differ."""
    with telling(None):
        one, two = (load_plan(x).each(proven) for x in (a, b))
        announce(None, "comparing the plans")
        found = compare_plans(one, two, (str(a), str(b)))
    return Answer(found.to_json(), lambda: compared_view(found))


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
    return Answer(document, lambda: [made.sentence, Unbroken(f"wrote {name(str(target))}")])
