"""The answer of a command: a document for machines and a view for people."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Console


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
    """A console on stdout, wide in files and pipes so that tables do not break there."""
    return Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)


def err_console() -> Console:
    """A console on stderr, for progress and warnings."""
    return Console(stderr=True, highlight=False, markup=False)
