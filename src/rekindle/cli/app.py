"""`main`: runs a command, prints its answer as a table or as one JSON document, turns errors into exit codes."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import typer

from ..errors import InfeasibleBudget, RekindleError, UsageError
from . import bench, demo, planning, solvers
from .answer import Answer, out_console

OK, FAILED, USAGE, INFEASIBLE = 0, 1, 2, 3

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Makes a PyTorch model train inside a memory budget, bit for bit. "
    "Every command takes --json: one JSON document on stdout.",
)
for module in (demo, planning, solvers, bench):
    module.register(app)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 success, 2 bad usage, 3 infeasible budget, 1 any other failure."""
    given = list(sys.argv[1:] if args is None else args)
    if "--json" not in given or "--help" in given:
        code, answer = _run(given)
        console = out_console()
        for part in answer.view() if answer is not None else ():
            console.print(part)
        return code
    with _nothing_on_stdout():
        code, answer = _run(given)
        document = {} if answer is None else answer.document
        text = json.dumps(document, allow_nan=False, default=_plain)
    print(text)
    return code


def _run(args: list[str]) -> tuple[int, Answer | None]:
    try:
        result = app(args, prog_name="rekindle", standalone_mode=False)
        return (result.code, result) if isinstance(result, Answer) else (int(result or OK), None)
    except (Exception, KeyboardInterrupt) as e:
        return _failed(e)


def _failed(error: BaseException) -> tuple[int, Answer]:
    """One paragraph on stderr, and what --json prints."""
    name, message, code = type(error).__name__, str(error), FAILED
    if isinstance(error, UsageError):
        code = USAGE
    elif isinstance(error, InfeasibleBudget):
        code = INFEASIBLE
    elif hasattr(error, "format_message"):  # the command line could not be understood; typer's own exceptions
        name, message, code = "UsageError", error.format_message(), int(getattr(error, "exit_code", USAGE))
    elif isinstance(error, KeyboardInterrupt | typer.Abort):
        name, message = "Interrupted", "interrupted; nothing was written"
    elif not isinstance(error, RekindleError):
        message = f"{name}: {message or 'no message'}{_where(error)}"
    paragraph = " ".join(message.split())
    if paragraph:  # typer has none where it shows the help instead
        print(f"error: {paragraph}", file=sys.stderr)
    if os.environ.get("REKINDLE_TRACEBACK"):
        traceback.print_exception(error)
    more = {k: v for k, v in vars(error).items() if isinstance(error, RekindleError) and _is_plain(v)}
    return code, Answer({"error": {"type": name, "message": paragraph, **more}}, list, code)


def _where(error: BaseException) -> str:
    """The file and line that raised, for errors that are not ours."""
    frames = traceback.extract_tb(error.__traceback__)
    hint = "set REKINDLE_TRACEBACK=1 to see the whole traceback"
    return f" (raised at {frames[-1].filename}:{frames[-1].lineno}; {hint})" if frames else ""


def _is_plain(x: Any) -> bool:
    return x is None or isinstance(x, str | int | float | bool)


def _plain(x: Any) -> Any:
    """numpy scalars as Python's; what is left as its text."""
    return x.item() if hasattr(x, "item") else str(x)


@contextmanager
def _nothing_on_stdout() -> Iterator[None]:
    """Whatever prints meanwhile, in Python or in compiled code, prints on stderr."""
    sys.stdout.flush()
    try:
        saved = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # there is no such file: nothing to protect
        saved = -1
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if saved >= 0:
            os.dup2(saved, 1)
            os.close(saved)
