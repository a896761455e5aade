"""The options that several commands share, and how their text is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..ask import Goal
from ..errors import UsageError
from ..model import files

Model = Annotated[str, typer.Argument(help="zoo:NAME, or path/to/file.py:function which returns (model, sample).")]
Batch = Annotated[int | None, typer.Option(max=2**31, help="Batch size; the model's own unless given.")]
Budget = Annotated[
    str | None,
    typer.Option(help="Peak memory of the whole step: bytes, 8GiB, 512MiB, or a fraction such as 0.5 "
                      "of the plain step's activation peak."),
]  # fmt: skip
MaxOverhead = Annotated[float | None, typer.Option(help="Least memory within this extra cost: 0.1 means 10 % more.")]
Minimize = Annotated[str | None, typer.Option(help='"memory": the least memory at any cost.')]
SolverName = Annotated[str, typer.Option("--solver", help="One of `rekindle solvers`.")]
Cost = Annotated[str, typer.Option(help="What time means: seconds, flops or unit.")]
Target = Annotated[str | None, typer.Option(help="Device whose roofline gives the seconds, e.g. h200.")]
TimeLimit = Annotated[float | None, typer.Option(max=1e9, help="Seconds the solver may take.")]
Seed = Annotated[int, typer.Option(min=-(2**63), max=2**63 - 1, help="Makes randomised solvers repeatable.")]
Out = Annotated[Path | None, typer.Option(help="File to write.")]
Svg = Annotated[Path | None, typer.Option(help="Picture to write.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else there.")]


def read_goal(budget: str | None, max_overhead: float | None, minimize: str | None) -> Goal:
    """The one goal that was given.

    Raises
    ------
    UsageError : none or several were given, or one makes no sense.
    """
    try:
        return Goal.parse(budget, max_overhead, minimize)
    except UsageError as e:
        named = str(e).replace("exactly one of budget, max_overhead and minimize",
                               "exactly one of --budget, --max-overhead and --minimize")  # fmt: skip
        raise UsageError(named) from None


def check_writable(*paths: Path | None) -> None:
    """Check, before long work, that every file can be written, and that no two are the same.

    Raises
    ------
    UsageError : one is a folder, a device, a pipe or protected, its folder is missing, or two are the same file.
    """
    real = [files.check_writable(path) for path in paths if path is not None]
    if len(set(real)) < len(real):
        raise UsageError(f"cannot write two things into {real[0]}; name two files")
