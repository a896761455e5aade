"""From an exception to an exit code, one paragraph on stderr, and the document that --json prints."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from typing import Any

import typer

from .. import interrupt
from ..errors import InfeasibleBudget, RekindleError, UsageError
from ..printed import printable
from .answer import Answer

OK, FAILED, USAGE, INFEASIBLE = 0, 1, 2, 3
DEBUG = "--debug"


def failed(error: BaseException, debug: bool = False) -> tuple[int, Answer]:
    """Print one paragraph about `error` on stderr. Returns the exit code and the answer for --json.

    debug : print the traceback too; the environment variable REKINDLE_TRACEBACK asks for it as well.
    """
    name, message, code = type(error).__name__, _text(error), FAILED
    if isinstance(error, UsageError):
        code = USAGE
    elif isinstance(error, InfeasibleBudget):
        code = INFEASIBLE
    elif hasattr(error, "format_message"):  # typer's own exceptions: the command line could not be understood
        name, message, code = "UsageError", error.format_message(), int(getattr(error, "exit_code", USAGE))
    elif isinstance(error, KeyboardInterrupt | typer.Abort):
        name, message = "Interrupted", interrupt.MESSAGE
    elif not isinstance(error, RekindleError):
        message = f"{name}: {message or 'no message'}{_where(error)}"
    paragraph = printable(" ".join(message.split()))
    if isinstance(error, UsageError | InfeasibleBudget):
        paragraph = as_options(paragraph)
    if paragraph:  # empty where typer shows the help
        say_error(paragraph)
    if debug or os.environ.get("REKINDLE_TRACEBACK"):
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exception(error)
    more = {k: v for k, v in vars(error).items() if isinstance(error, RekindleError) and _is_plain(v)}
    return code, Answer({"error": {"type": name, "message": paragraph, **more}}, list, code)


# An argument as errors name it: budget=150, minimize="memory", solver='auto'.
ARGUMENT = re.compile(
    r"\b(budget|max_overhead|minimize|solver|cost|effort|parity|gradients|host_budget|time_limit|seed|target|batch|optimizer)="
    r"""("[^"\s]*"|'[^'\s]*'|[\w.+-]+)(?![\w(])"""
)


def as_options(paragraph: str) -> str:
    """The paragraph with arguments of Python's functions as options of commands: "--minimize memory". A paragraph that quotes
    a call stays as it is."""
    if re.search(r"\w\([^)]*=", paragraph):
        return paragraph
    paragraph = paragraph.replace("or_least=True", "--or-least").replace("offload=True", "--offload yes")
    return ARGUMENT.sub(lambda m: f"--{m[1].replace('_', '-')} {m[2].strip(chr(34) + chr(39))}", paragraph)


def say_error(paragraph: str) -> None:
    """Print "error: paragraph" on stderr."""
    say(f"error: {paragraph}")


def say(line: str) -> None:
    """Print one line on stderr, if there is a stderr."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # __str__ of a user's exception may raise anything
        return ""


def _where(error: BaseException) -> str:
    """The file and line that raised, for errors that are not Rekindle's."""
    frames = traceback.extract_tb(error.__traceback__)
    hint = f"{DEBUG} shows the whole traceback"
    return f" (raised at {frames[-1].filename}:{frames[-1].lineno}; {hint})" if frames else ""


def _is_plain(x: Any) -> bool:
    return x is None or isinstance(x, str | int | float | bool)
