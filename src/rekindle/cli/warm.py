"""The command `warm`: compiles the search ahead, for images of machines and for CI. Imports no torch."""

from __future__ import annotations

from typing import Annotated

import typer

from ..planning.warming import warm as compile_ahead
from ..saying.progress import telling
from .answer import Answer
from .options import Json

All = Annotated[bool, typer.Option("--all", help="Compile the kernels of every solver, not only those of auto.")]


def warm(every_solver: All = False, json: Json = False) -> Answer:
    """Compile the search ahead, so that the first plan does not wait for it: for images of machines and for CI."""
    with telling(None) as tell:
        made = compile_ahead(every_solver, tell)
    document = {"kernels": made.kernels, "seconds": made.seconds, "folder": made.folder}
    return Answer(document, lambda: [made.sentence])
