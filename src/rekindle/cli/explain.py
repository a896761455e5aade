"""The command `explain`: where a plan's memory goes, by module. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..model.files import write_text
from ..printed import name
from ..progress import announce, telling
from .answer import Answer, Whole
from .models import load_plan
from .options import Json, Out, check_writable

PlanFile = Annotated[
    Path, typer.Argument(metavar="PLAN", help="A file that --out of `plan`, or save() in Python, wrote.")
]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(explain)


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
    wrote = [] if out is None else [Whole(f"wrote {name(str(out))}")]
    return Answer(explanation.to_json(), lambda: [Whole(str(explanation)), *wrote])
