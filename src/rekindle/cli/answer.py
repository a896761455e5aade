"""The answer of a command, a document for machines and a view for people, and the streams that it goes to.

They print any text, and under --json nothing but the document reaches stdout.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

from rich.console import Console

COLUMNS = 80  # of a table at most


class Unbroken(str):
    """A line that is printed without breaks however long it is: it names a file."""


@dataclass(frozen=True)
class Answer:
    """The result of a command.

    document : the JSON document that --json prints.
    view : makes the tables and lines that are printed without --json.
    code : the exit code.
    """

    document: dict[str, Any]
    view: Callable[[], Iterable[Any]]
    code: int = 0


def out_console() -> Console:
    """A console on stdout: as wide as the terminal, and 80 columns in files and pipes, which all tables fit."""
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else COLUMNS
    return Console(width=width, highlight=False, markup=False)


def err_console() -> Console:
    """A console on stderr, for progress and warnings."""
    return Console(stderr=True, highlight=False, markup=False)


_document_fd = 1


def document_fd() -> int:
    """The descriptor that the document goes to: 1, or its copy while other output is sent to stderr."""
    return _document_fd


def open_standard_files() -> None:
    """Make the standard streams print any text in any locale, and open the null device in place of a closed one."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor: this one
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def nothing_on_stdout() -> Iterator[None]:
    """Send everything printed meanwhile to stderr, from Python and from compiled code."""
    global _document_fd
    flush()
    try:
        saved = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # there is no stdout to protect
        saved = -1
    _document_fd = saved if saved >= 0 else 1
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        flush()
        _document_fd = 1
        if saved >= 0:
            os.dup2(saved, 1)
            os.close(saved)


def drop_the_rest() -> None:
    """Discard buffered text: at its end the interpreter would try to write it again, and complain."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        sys.stdout.flush()


def flush() -> None:
    """Empty every buffer that leads to stdout, Python's and C's."""
    for stream in (sys.stdout, sys.__stdout__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # type: ignore[union-attr]
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).fflush(None)
