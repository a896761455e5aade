"""Checks arguments of the public functions before any long work."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from typing import Any

from .errors import UsageError
from .printed import value


def callback(name: str, given: Any) -> None:
    """Check that the argument `name` is a function, None, True or False.

    Raises
    ------
    UsageError : the argument is something else.
    """
    if given is not None and not isinstance(given, bool) and not callable(given):
        raise UsageError(
            f"{name}={value(given)} cannot be called; give a function that takes one line of text, or leave it out"
        )


def choice(name: str, given: Any, known: Iterable[str]) -> None:
    """Check that the argument `name` is one of the known names.

    Raises
    ------
    UsageError : the argument is something else; the message lists the known names.
    """
    known = list(known)
    if not isinstance(given, str) or given not in known:
        raise UsageError(f"{name}={value(given)} is unknown; {close(given, known)}choose one of {', '.join(known)}")


def names_in(argument: str, given: Any, of: str) -> tuple[str, ...]:
    """The names in an argument; a bare string is one name. of : what they name, for the message.

    Raises
    ------
    UsageError : it is no name and no list of names.
    """
    try:
        found = (given,) if isinstance(given, str) else tuple(given)
    except Exception:  # it is no list at all, or cannot be read: a tensor without dimensions, a closed file
        found = (None,)
    if not all(isinstance(x, str) and x for x in found):
        raise UsageError(f"{argument}={value(given)} must be {of}")
    return found


def flag(name: str, given: Any) -> None:
    """Check that the argument `name` is True or False.

    Raises
    ------
    UsageError : the argument is something else.
    """
    if type(given).__name__ not in ("bool", "bool_"):  # NumPy's is as good
        raise UsageError(f"{name}={value(given)} must be True or False")


def close(given: Any, known: Iterable[str], most: int = 3) -> str:
    """A question such as "did you mean 'chen-sqrt'? "; "" if no known name is like the given one."""
    near = difflib.get_close_matches(given, list(known), most) if isinstance(given, str) else []
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""


def file_name(path: Any) -> str:
    """The path of a file as text.

    Raises
    ------
    UsageError : the argument is no path.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise UsageError(f"{value(path)} is not the path of a file; give a str or a Path")
    return text
