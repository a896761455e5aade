"""`bench`: a suite of models under several methods, one row each."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict, is_dataclass
from typing import Annotated, Any

import typer

from ..report import text
from .answer import Answer, progress
from .options import Json, Out, check_writable

Suite = Annotated[str, typer.Option(help="Name of the suite; seeds is the published table.")]
Names = Annotated[str | None, typer.Option(help="Only these, separated by commas.")]


def register(app: typer.Typer) -> None:
    """Enter the command of this file."""
    app.command()(bench)


def bench(
    suite: Suite = "seeds", models: Names = None, methods: Names = None, out: Out = None, json: Json = False
) -> Answer:
    """Measure a suite; --out appends each row to a JSON-lines file as soon as it is there."""
    check_writable(out)
    from ..report.bench import run_suite

    rows = []
    with progress() as tell:
        for row in run_suite(suite, models=_names(models), methods=_names(methods), progress=tell):
            rows.append(asdict(row) if is_dataclass(row) and not isinstance(row, type) else dict(row))
            if out is not None:
                with out.open("a", encoding="utf-8") as f:
                    f.write(jsonlib.dumps(rows[-1]) + "\n")
    document: dict[str, Any] = {"suite": suite, "rows": rows}
    return Answer(document, lambda: [text.bench_table(rows, f"suite {suite}")])


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
