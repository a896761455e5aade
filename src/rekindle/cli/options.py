"""Options that several commands share, and the checks on their text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from .. import zoo
from ..ask import EFFORTS, GRADIENTS, PARITIES, Goal
from ..errors import UsageError
from ..model import files
from ..model.graph import COSTS
from ..planning import accept, registry
from ..printed import name, value
from ..torch.costs import devices

BATCH_MOST = 2**31
OFFLOADS: dict[str, bool | str] = {"no": False, "yes": True, "auto": "auto"}  # --offload -> `offload` of Python


def among(words: Callable[[], Iterable[str]] | Iterable[str]) -> Callable[[str], list[str]]:
    """The words that the shell offers when a user presses the tab key: those of `words` that begin with what is typed."""

    def complete(incomplete: str) -> list[str]:
        return [w for w in (words() if callable(words) else words) if w.startswith(incomplete)]

    return complete


def models() -> list[str]:
    """Models of the zoo, as commands take them."""
    return [f"zoo:{name}" for name in zoo.names()]


def solvers(incomplete: str) -> list[tuple[str, str]]:
    """Solvers that the shell offers, each with what it is."""
    return [(s.name, s.doc.partition("\n")[0]) for s in registry.all_solvers() if s.name.startswith(incomplete)]


def _batch(given: int | None) -> int | None:
    if given is not None and given > BATCH_MOST:
        raise UsageError(f"--batch {given} is more than any step takes; give at most {BATCH_MOST}")
    return given


def share(text: str) -> float:
    """A number as Python reads it: "10" is a whole number, which `max_overhead` asks back about."""
    return int(text) if text.strip().isascii() and text.strip().isdigit() else float(text)


def _time_limit(given: float | None) -> float | None:
    if given is not None and not 0 < given <= accept.TIME_MOST_S:  # nan too
        raise UsageError(
            f"--time-limit {given:g} is no time of a search; give a number of seconds above 0, at most "
            f"{accept.TIME_MOST_S:g}, or leave it out: then the search takes what it needs"
        )
    return given


def _offload(given: str) -> str:
    if given not in OFFLOADS:
        raise UsageError(f"--offload {value(given)} is unknown; choose one of {', '.join(OFFLOADS)}")
    return given


def target_name(given: str | None) -> str | None:
    """The name of a device with known rates; None: none is given.

    Raises
    ------
    UsageError : another name; the message lists the choices.
    """
    if given is not None and not devices.is_known(given):
        raise UsageError(f"--target {value(given)} is unknown; choose one of {', '.join(devices.names())}")
    return given


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="zoo:NAME, or path/to/file.py:function, where function() returns (model, sample).",
        autocompletion=among(models),
    ),
]
Batch = Annotated[int | None, typer.Option(metavar="N", callback=_batch, help="Batch size. Default: the model's own.")]
Budget = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Peak memory of the whole step (8GiB, 512MiB or bytes), or a fraction of the "
                                      "baseline's activation peak (0.5)."),
]  # fmt: skip
MaxOverhead = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", parser=share, help="Least memory within this extra cost, as a fraction: 0.1 is 10 %."
    ),
]
Minimize = Annotated[
    str | None,
    typer.Option(metavar="memory", help="Least memory at any cost.", autocompletion=among(("memory",))),
]
SolverName = Annotated[
    str,
    typer.Option(
        "--solver", metavar="NAME", autocompletion=solvers,
        help="One of {solvers}. `rekindle solvers` says what each one does.",
    ),
]  # fmt: skip
Cost = Annotated[
    str,
    typer.Option(
        metavar="UNIT",
        help="The cost to keep low: seconds, flops or unit (runs of ops).",
        autocompletion=among(COSTS),
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE", autocompletion=among(devices.names), callback=target_name,
        help="Take seconds from the roofline of this device instead of measuring them: {devices}.",
    ),
]  # fmt: skip
Effort = Annotated[
    str,
    typer.Option(
        metavar="EFFORT", autocompletion=among(EFFORTS),
        help="How long `auto` searches: quick, normal, or thorough (the best plan it can find).",
    ),
]  # fmt: skip
Cache = Annotated[bool, typer.Option("--cache/--no-cache", help="Remember plans on disk, and read them from there.")]
Parity = Annotated[
    str,
    typer.Option(
        metavar="PARITY", autocompletion=among(PARITIES),
        help="bitwise: gradients are eager's, bit for bit. close: plans that add up a parameter's gradient in another order "
             "are admitted too.",
    ),
]  # fmt: skip
Offload = Annotated[
    str,
    typer.Option(
        metavar="WAY", autocompletion=among(OFFLOADS), callback=_offload,
        help="Whether a plan may copy values to the host's memory and back: no, yes, or auto (yes where there is a link).",
    ),
]  # fmt: skip
HostBudget = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="Bytes of copied values that the host may hold (16GiB). Default: what the plan needs."
    ),
]
OrLeast = Annotated[
    bool, typer.Option("--or-least", help="Where no plan keeps the budget, make the plan of least memory in its place.")
]
Unused = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A result that the training loop does not read, such as logits: planned calls return None in its place. May be "
             "given several times.",
    ),
]  # fmt: skip
Gradients = Annotated[
    str,
    typer.Option(
        metavar="WAY", autocompletion=among(GRADIENTS),
        help="How the training loop treats gradients. kept: any way, all of them count during the whole step. fresh: they are "
             "None when a step begins. consumed: an optimizer inside backward uses each one up.",
    ),
]  # fmt: skip
TimeLimit = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", callback=_time_limit, help="For the search at most. Default: as long as it needs."),
]
Seed = Annotated[
    int,
    typer.Option(metavar="N", callback=accept.seed, help="Of randomised solvers: the same seed gives the same plan."),
]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="File to write the result to.")]
Svg = Annotated[Path | None, typer.Option(metavar="FILE", help="File to write an SVG picture to.")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="File to write a report to, one HTML page.")]
OptimizerName = Annotated[
    str,
    typer.Option(
        "--optimizer", metavar="NAME", help="Whose state counts: adamw, sgd-momentum, …; none: no optimizer's."
    ),
]
Compile = Annotated[
    bool, typer.Option("--compile", help="Compile the model's parts, each in the measured way that keeps the goal.")
]
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
        if budget is not None and "budget" not in named:  # the text is no size
            named = f"--budget {named}"
        raise UsageError(named) from None


def check_writable(*paths: Path | None, reads: Iterable[str | Path | None] = ()) -> None:
    """Check before any long work that every file can be written, that no two are the same file, and that none is read.

    reads : the files that the command reads.

    Raises
    ------
    UsageError : a path is a folder, a device, a pipe or protected; its folder is missing; two are the same file; or one is
        a file that the command reads.
    """
    real = [files.check_writable(path) for path in paths if path is not None]
    for path in reads:
        if path is not None and Path(os.path.realpath(path)) in real:
            raise UsageError(
                f"{name(str(path))} is read by this command and would be written over; name another file to write"
            )
    if len(set(real)) < len(real):
        raise UsageError(f"cannot write two things into {real[0]}; name two files")
