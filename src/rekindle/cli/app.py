"""`main`: runs a command, prints its answer as tables or as one JSON document, turns errors into exit codes."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from ..version import __version__
from . import bench, ctrl_c, demo, estimate, helping, lists, planning, reading, trace, warm
from .answer import Answer, Whole, out_console
from .failures import DEBUG, FAILED, OK, failed, say, say_error
from .streams import drop_the_rest, flush, nothing_on_stdout, open_standard_files

SIGNALLED = 128  # greater exit codes name the signal that ended a program


class _Raised(Exception):
    """Carries an exception of a command past typer, which would turn it into an exit code of typer's own."""


class _Group(TyperGroup):
    """The commands. Before one of them runs, only the shell's completion ends the program by SystemExit.

    running : whether a command has begun.
    """

    running = False

    def get_params(self, ctx: Any) -> Any:
        return helping.plain_flags(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with helping.printing():
            super().format_help(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        _Group.running = True
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, EOFError, OSError) as e:
            raise _Raised from e


def _version(wanted: bool) -> None:
    if wanted:
        with helping.printing():
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
    demo.demo, estimate.estimate, planning.plan, planning.frontier, planning.solve, reading.explain, reading.compare,
    trace.trace, lists.zoo, reading.report, lists.solvers, bench.bench, warm.warm,
):  # fmt: skip
    app.command(cls=helping.Command, epilog=helping.EPILOG)(function)


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
                console.print(part, soft_wrap=isinstance(part, Whole))

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
        if isinstance(error, helping.Unprinted):
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
