"""`main`: runs a command, prints its answer as a table or as one JSON document, turns errors into exit codes."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import typer
from typer.core import TyperGroup

from .. import interrupt
from ..errors import InfeasibleBudget, RekindleError, UsageError
from ..printed import printable
from ..version import __version__
from . import bench, demo, planning, solvers
from .answer import Answer, out_console

OK, FAILED, USAGE, INFEASIBLE = 0, 1, 2, 3
GRACE_S = 5.0  # for compiled code to return after Ctrl-C
SIGNALLED = 128  # exit codes above it say which signal ended a program


class _Raised(Exception):
    """Carries an exception of a command past typer, which would turn it into exit codes of its own."""


class _Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, EOFError, OSError) as e:
            raise _Raised from e


def _version(wanted: bool) -> None:
    if wanted:
        print(f"rekindle {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=_Group,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Makes a PyTorch model train inside a memory budget, bit for bit. "
    "Every command takes --json: one JSON document on stdout.",
)


@app.callback()
def _common(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Say which version this is."
    ),
) -> None:
    pass


for module in (demo, planning, solvers, bench):
    module.register(app)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 success, 2 bad usage, 3 infeasible budget, 1 any other failure, Ctrl-C
    and a reader that closed the pipe included.

    args : without the program's name; None: those of this process, which the command line then has for itself.
    """
    given = list(sys.argv[1:] if args is None else args)
    if args is None:
        _standard_files()
        _watch_ctrl_c("--json" in given)
    with _ctrl_c():
        code = _main(given)
    if args is None:
        _end(code, "--json" in given)
    return code


def _end(code: int, document: bool) -> None:
    """Before the interpreter ends: threads and other libraries that end now print nothing beside the document, and Ctrl-C
    means no more than it does anywhere."""
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if document:
        with contextlib.suppress(OSError):
            os.dup2(2, 1)
    if _pressed:
        # Once KeyboardInterrupt has passed through exec, Python lets the process die of the signal, whatever came after.
        atexit._run_exitfuncs()
        _flush()
        os._exit(code)


def _main(given: list[str]) -> int:
    if "--json" not in given or {"--help", "-h"} & set(given):
        code, answer = _run(given)

        def show() -> None:
            console = out_console()
            for part in answer.view() if answer is not None else ():
                console.print(part)

        return _printed(show, code)
    if set(given) == {"--json", "--version"}:
        code, document = OK, {"version": __version__}
    else:
        with _nothing_on_stdout():
            code, answer = _run(given)
            document = {} if answer is None else answer.document
    text = json.dumps(document, allow_nan=False, default=_plain)
    return _printed(lambda: print(text), code)


def _printed(show: Any, code: int) -> int:
    """Print the answer; the exit code. A reader that has closed the pipe (`| head`) is no cause for words."""
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
        problem = f"cannot write to standard output: {getattr(e, 'strerror', None) or e}"
    except SystemExit:  # rich's answer to a closed pipe
        pass
    # The interpreter would try to write the rest of the buffer again when it ends, and complain.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    if problem is not None:
        _say(problem)
    return code or FAILED


def _run(args: list[str]) -> tuple[int, Answer | None]:
    try:
        result = app(args, prog_name="rekindle", standalone_mode=False)
        if isinstance(result, Answer):
            if _pressed:
                _note("interrupted: this is the best that was found until then")
            return result.code, result
        return _failed(KeyboardInterrupt()) if _pressed else (int(result or OK), None)
    except BaseException as e:
        error: BaseException = e.__cause__ if isinstance(e, _Raised) and e.__cause__ is not None else e
        if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > SIGNALLED:
            raise error from None  # told to end by a signal
        if isinstance(error.__context__, BrokenPipeError) and isinstance(error, SystemExit):
            return FAILED, None  # rich's answer to a closed pipe, where typer prints the help
        if _pressed:  # an import or a compilation that was cut off may raise anything
            error = KeyboardInterrupt()
        return _failed(error)


def _failed(error: BaseException) -> tuple[int, Answer]:
    """One paragraph on stderr, and what --json prints."""
    name, message, code = type(error).__name__, _text(error), FAILED
    if isinstance(error, UsageError):
        code = USAGE
    elif isinstance(error, InfeasibleBudget):
        code = INFEASIBLE
    elif hasattr(error, "format_message"):  # the command line could not be understood; typer's own exceptions
        name, message, code = "UsageError", error.format_message(), int(getattr(error, "exit_code", USAGE))
    elif isinstance(error, KeyboardInterrupt | typer.Abort):
        name, message = "Interrupted", interrupt.MESSAGE
    elif not isinstance(error, RekindleError):
        message = f"{name}: {message or 'no message'}{_where(error)}"
    paragraph = printable(" ".join(message.split()))
    if paragraph:  # typer has none where it shows the help instead
        _say(paragraph)
    if os.environ.get("REKINDLE_TRACEBACK"):
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exception(error)
    more = {k: v for k, v in vars(error).items() if isinstance(error, RekindleError) and _is_plain(v)}
    return code, Answer({"error": {"type": name, "message": paragraph, **more}}, list, code)


def _say(paragraph: str) -> None:
    _note(f"error: {paragraph}")


def _note(line: str) -> None:
    """One line on stderr, if there is one."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a foreign __str__ may raise anything
        return ""


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


_pressed: list[float] = []  # when Python answered a Ctrl-C, since the command began
_stdout = 1  # descriptor of what the document goes to


@contextmanager
def _ctrl_c() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, and `_pressed` remembers when."""
    _pressed.clear()

    def press(signum: int, frame: Any) -> None:
        _pressed.append(time.monotonic())
        raise KeyboardInterrupt

    before: Any = None
    # A shell starts what runs in the background with the signal ignored; outside of the main thread nothing can be set.
    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
            before = signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _watch_ctrl_c(document: bool) -> None:
    """A thread that ends the process where Python does not come to answer Ctrl-C, because compiled code runs on and on.

    The system's own handler writes a byte into a pipe at once; Python's runs when the compiled code returns.
    """
    end, start = os.pipe()
    os.set_blocking(start, False)
    try:
        signal.set_wakeup_fd(start, warn_on_full_buffer=False)
    except ValueError:  # not the main thread
        return

    def watch() -> None:
        while number := os.read(end, 1):
            at = time.monotonic()
            if number[0] != signal.SIGINT:
                continue
            time.sleep(GRACE_S)
            if not _pressed or _pressed[-1] < at - GRACE_S:
                interrupt.end_now(_stdout if document else None)

    threading.Thread(target=watch, name="rekindle-ctrl-c", daemon=True).start()
    # A child's Ctrl-C is none of the parent's.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_unwatched)


def _unwatched() -> None:
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)


def _standard_files() -> None:
    """Standard streams that print any text, whatever the locale; and no file of ours takes the place of a closed one."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor: this one
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _nothing_on_stdout() -> Iterator[None]:
    """Whatever prints meanwhile, in Python or in compiled code, prints on stderr."""
    global _stdout
    _flush()
    try:
        saved = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # there is no such file: nothing to protect
        saved = -1
    _stdout = saved if saved >= 0 else 1
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _flush()
        _stdout = 1
        if saved >= 0:
            os.dup2(saved, 1)
            os.close(saved)


def _flush() -> None:
    """Empty every buffer before descriptor 1, Python's and C's."""
    for stream in (sys.stdout, sys.__stdout__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # type: ignore[union-attr]
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).fflush(None)
