"""`main`: runs a command, prints its answer as tables or as one JSON document, turns errors into exit codes."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..planning import registry
from ..torch.costs import devices
from ..version import __version__
from . import bench, ctrl_c, estimate, planning, reading, without_model
from .answer import Answer, Unbroken, drop_the_rest, flush, nothing_on_stdout, open_standard_files, out_console
from .failures import DEBUG, FAILED, OK, failed, say, say_error

SIGNALLED = 128  # greater exit codes name the signal that ended a program
EPILOG = "With --debug, an error shows its traceback."


def solver_names() -> list[str]:
    """The names that --solver takes. The files of all solvers are imported: a tenth of a second, and scipy."""
    return [s.name for s in registry.all_solvers()]


# Texts in a help, and what stands in their place. Solvers are imported when a help is shown, not before.
CHOICES: dict[str, Callable[[], list[str]]] = {"{solvers}": solver_names, "{devices}": devices.names}


class Unprinted(Exception):
    """The help or the version could not be written to standard output; the cause says why."""


@contextmanager
def printing() -> Iterator[None]:
    """Raise Unprinted for an OSError of the body, which prints: it is no failure of a command."""
    try:
        yield
    except OSError as e:
        raise Unprinted from e


class Command(TyperCommand):
    """A command whose help fits 80 columns: its flags show no type, and its choices are listed."""

    def get_params(self, ctx: Any) -> Any:
        return plain_flags(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for p in self.params:
            text: str = getattr(p, "help", None) or ""
            for place, names in CHOICES.items():
                if place in text:
                    text = text.replace(place, ", ".join(names()))
            if text:
                p.help = text  # type: ignore[attr-defined]
        self.help = "\n\n".join(" ".join(p.split()) for p in (self.help or "").split("\n\n"))  # wrapped anew
        with printing():
            super().format_help(ctx, formatter)


def plain_flags(params: Any) -> Any:
    """The parameters of a command, with an empty word in place of the type of flags and arguments, which their names tell."""
    for p in params:
        if getattr(p, "is_flag", False) and p.metavar is None:
            p.metavar = ""
        elif p.param_type_name == "argument":
            p.display_type_rich = _nothing  # of one object: typer has no option for it
    return params


def _nothing(ctx: Any) -> str:
    return ""


class _Raised(Exception):
    """Carries an exception of a command past typer, which would turn it into an exit code of typer's own."""


class _Group(TyperGroup):
    """The commands. Before one of them runs, only the shell's completion ends the program by SystemExit.

    running : whether a command has begun.
    """

    running = False

    def get_params(self, ctx: Any) -> Any:
        return plain_flags(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with printing():
            super().format_help(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        _Group.running = True
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, EOFError, OSError) as e:
            raise _Raised from e


def _version(wanted: bool) -> None:
    if wanted:
        with printing():
            print(f"rekindle {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Makes a PyTorch model train inside a memory budget, with the same numbers bit for bit. "
    "Every command takes --json: one JSON document on stdout.",
    epilog="Exit codes: 0 success, 1 failure, 2 bad usage, 3 infeasible budget.",
)


@app.callback()
def _common(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(False, DEBUG, help="Show the traceback of an error. Every command takes it."),
) -> None:
    pass


for function in (
    without_model.demo, estimate.estimate, planning.plan, planning.frontier, planning.solve, reading.explain, reading.compare,
    planning.trace, without_model.zoo, reading.report, without_model.solvers, bench.bench, without_model.warm,
):  # fmt: skip
    app.command(cls=Command, epilog=EPILOG)(function)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0 success, 2 bad usage, 3 infeasible budget, 1 any other failure.

    Ctrl-C, and a reader that closed the pipe, give 1.

    args : without the program's name. None: those of this process, whose streams and signals the command line then sets up.
    """
    given = list(sys.argv[1:] if args is None else args)
    if debug := DEBUG in _options(given):
        given = [a for a in _options(given) if a != DEBUG] + given[len(_options(given)) :]
    if args is None:
        open_standard_files()
        ctrl_c.watch("--json" in _options(given))
    with ctrl_c.raising():
        code = _main(given, debug)
    if args is None:
        _end(code, "--json" in _options(given))
    return code


def _end(code: int, document: bool) -> None:
    """Prepare the interpreter's end: threads and libraries that end now must print nothing beside the document."""
    ctrl_c.stop_handling()
    if document:
        with contextlib.suppress(OSError):
            os.dup2(2, 1)
    if ctrl_c.pressed():
        # Once KeyboardInterrupt has passed through exec, Python lets the process die of the signal, whatever came after.
        atexit._run_exitfuncs()
        flush()
        os._exit(code)


def _options(given: list[str]) -> list[str]:
    """The arguments up to "--", after which no argument is an option."""
    return given[: given.index("--")] if "--" in given else given


def _main(given: list[str], debug: bool) -> int:
    options = _options(given)
    if "--json" not in options or {"--help", "-h"} & set(options):
        code, answer = _run(given, debug)

        def show() -> None:
            console = out_console()
            for part in answer.view() if answer is not None else ():
                console.print(part, soft_wrap=isinstance(part, Unbroken))

        return _printed(show, code)
    if set(options) == {"--json", "--version"}:
        code, document = OK, {"version": __version__}
    else:
        with nothing_on_stdout():
            code, answer = _run(given, debug)
            document = {} if answer is None else answer.document
    text = json.dumps(document, allow_nan=False, default=_plain)
    return _printed(lambda: print(text), code)


def _printed(show: Any, code: int) -> int:
    """Print the answer and return the exit code. Says nothing where the reader has closed the pipe (`| head`)."""
    problem: str | None = None
    try:
        if sys.stdout is None:
            raise OSError("it is closed")
        show()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        pass
    except KeyboardInterrupt:
        problem = "interrupted"
    except (OSError, ValueError) as e:
        problem = _unwritten(e)
    except SystemExit:  # rich raises it when the pipe is closed
        pass
    drop_the_rest()
    if problem is not None:
        say_error(problem)
    return code or FAILED


def _unwritten(e: BaseException) -> str:
    return f"cannot write to standard output: {getattr(e, 'strerror', None) or e}"


def _run(args: list[str], debug: bool) -> tuple[int, Answer | None]:
    _Group.running = False
    try:
        result = app(args, prog_name="rekindle", standalone_mode=False)
        if isinstance(result, Answer):
            if ctrl_c.pressed():
                say("interrupted: this is the best found until then")
            return result.code, result
        return failed(KeyboardInterrupt(), debug) if ctrl_c.pressed() else (int(result or OK), None)
    except BaseException as e:
        error: BaseException = e.__cause__ if isinstance(e, _Raised) and e.__cause__ is not None else e
        if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > SIGNALLED:
            raise error from None  # a signal told the program to end
        if isinstance(error.__context__, BrokenPipeError) and isinstance(error, SystemExit):
            return FAILED, None  # rich raises it when the pipe is closed while typer prints the help
        if isinstance(error, Unprinted):
            drop_the_rest()
            if not isinstance(error.__cause__, BrokenPipeError):
                say_error(_unwritten(error.__cause__ or error))
            return FAILED, None
        if ctrl_c.pressed():  # an import or a compilation that was cut off may raise anything
            error = KeyboardInterrupt()
        elif isinstance(error, SystemExit) and not _Group.running and isinstance(error.code, int | None):
            return error.code or OK, None  # the shell's completion has said all there is to say
        return failed(error, debug)


def _plain(x: Any) -> Any:
    """NumPy scalars as Python's; anything else as text."""
    return x.item() if hasattr(x, "item") else str(x)
