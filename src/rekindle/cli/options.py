"""Options that several commands share, and the checks on their text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..ask import Goal
from ..errors import UsageError
from ..model import files

Model = Annotated[
    str, typer.Argument(help="zoo:NAME, or path/to/file.py:function, where function() returns (model, sample).")
]
Batch = Annotated[int | None, typer.Option(max=2**31, help="Batch size. Default: the model's own.")]
Budget = Annotated[
    str | None,
    typer.Option(help="Peak memory of the whole step (8GiB, 512MiB or bytes), or a fraction of the plain step's "
                      "activation peak (0.5)."),
]  # fmt: skip
MaxOverhead = Annotated[
    float | None, typer.Option(help="Least memory within this extra cost, as a fraction: 0.1 is 10 %.")
]
Minimize = Annotated[str | None, typer.Option(help='"memory": least memory at any cost.')]
SolverName = Annotated[str, typer.Option("--solver", help="A name that `rekindle solvers` lists.")]
Cost = Annotated[str, typer.Option(help="The cost to keep low: seconds, flops or unit (runs of ops).")]
Target = Annotated[
    str | None, typer.Option(help="Take seconds from the roofline of this device (h200) instead of measuring them.")
]
Effort = Annotated[
    str, typer.Option(help="How long `auto` searches: quick, normal, or thorough (the best plan it can find).")
]
Cache = Annotated[
    bool, typer.Option("--cache/--no-cache", help="Remember plans on disk, and read them from there (default: yes).")
]
TimeLimit = Annotated[
    float | None, typer.Option(max=1e9, help="Seconds that the search may take. Default: as long as it needs.")
]
Seed = Annotated[
    int,
    typer.Option(min=-(2**63), max=2**63 - 1, help="Seed of randomised solvers: the same seed gives the same plan."),
]
Out = Annotated[Path | None, typer.Option(help="File to write the result to.")]
Svg = Annotated[Path | None, typer.Option(help="File to write an SVG picture to.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]


def read_goal(budget: str | None, max_overhead: float | None, minimize: str | None) -> Goal:
    """The goal that these options state.

    Raises
    ------
    UsageError : no option was given, or several, or one makes no sense.
    """
    try:
        return Goal.parse(budget, max_overhead, minimize)
    except UsageError as e:
        named = str(e).replace("exactly one of budget, max_overhead and minimize",
                               "exactly one of --budget, --max-overhead and --minimize")  # fmt: skip
        raise UsageError(named) from None


def check_writable(*paths: Path | None) -> None:
    """Check before any long work that every file can be written, and that no two are the same file.

    Raises
    ------
    UsageError : a path is a folder, a device, a pipe or protected; its folder is missing; or two are the same file.
    """
    real = [files.check_writable(path) for path in paths if path is not None]
    if len(set(real)) < len(real):
        raise UsageError(f"cannot write two things into {real[0]}; name two files")
