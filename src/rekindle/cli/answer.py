"""The answer of a command: a document for machines and a view for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Console

COLUMNS = 80  # of a table at most


class Whole(str):
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
