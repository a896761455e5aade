"""What a command gives back: a document for machines and a view for people."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from ..problem import Progress


@dataclass(frozen=True)
class Answer:
    """document : what --json prints. view : makes what is printed otherwise. code : the exit code."""

    document: dict[str, Any]
    view: Callable[[], Iterable[Any]]
    code: int = 0


def out_console() -> Console:
    """stdout; wide where it is no terminal, so that tables do not break in files and pipes."""
    return Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)


def err_console() -> Console:
    """stderr, where progress and warnings go."""
    return Console(stderr=True, highlight=False, markup=False)


@contextmanager
def progress() -> Iterator[Progress]:
    """A function that shows one line at a time on stderr; silent where stderr is no terminal."""
    console = err_console()
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("working") as status:
        yield lambda line: status.update(line)
