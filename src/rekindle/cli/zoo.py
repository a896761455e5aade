"""The command `zoo`: the models that `zoo:NAME` takes. Imports no torch."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ..errors import UsageError
from ..show.text import zoo_table
from ..zoo import SUITES
from ..zoo.listing import listing
from .answer import Answer
from .options import Json

Suite = Annotated[str | None, typer.Option(metavar="NAME", help=f"Only the models of this suite: {', '.join(SUITES)}.")]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(zoo)


def zoo(suite: Suite = None, json: Json = False) -> Answer:
    """List the models of the zoo: suite, default batch, parameters. Commands take them as zoo:NAME."""
    if suite is not None and suite not in SUITES:
        raise UsageError(f"--suite {suite!r} is unknown; choose one of {', '.join(SUITES)}")
    models = [m for m in listing() if suite in (None, m.suite)]
    return Answer({"models": [asdict(m) for m in models]}, lambda: [zoo_table(models)])
