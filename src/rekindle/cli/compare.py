"""The command `compare`: two plans side by side. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..explain.comparison import compare as compare_plans
from ..progress import announce, telling
from ..show.compared import compared_view
from .answer import Answer
from .models import load_plan
from .options import Json

PlanA = Annotated[Path, typer.Argument(metavar="PLAN_A", help="A plan file.")]
PlanB = Annotated[Path, typer.Argument(metavar="PLAN_B", help="The plan file to set beside it.")]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(compare)


def compare(a: PlanA, b: PlanB, json: Json = False) -> Answer:
    """Set two plans side by side: figures, the modules that differ, and where their graphs differ."""
    with telling(None):
        one, two = load_plan(a), load_plan(b)
        announce(None, "comparing the plans")
        found = compare_plans(one, two, (str(a), str(b)))
    return Answer(found.to_json(), lambda: compared_view(found))
