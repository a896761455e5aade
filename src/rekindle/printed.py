"""Makes strings and numbers from files and models safe to print: they hold nothing that a terminal would obey."""

from __future__ import annotations

import reprlib
from typing import Any

NAME_MOST_LETTERS = 200


def printable(text: str, keep: str = "") -> str:
    """The text with every unprintable character spelled out: "\\x1b[2J" for the escape that clears a screen.

    Control characters, line breaks, invisible marks and lone surrogates are spelled out, except those in `keep`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)


def name(text: str) -> str:
    """A name that is safe to print: `printable`, and cut to 200 characters."""
    text = text if len(text) <= NAME_MOST_LETTERS else text[: NAME_MOST_LETTERS - 1] + "…"
    return printable(text)


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 60
        self.maxlevel, self.maxlist, self.maxdict, self.maxtuple = 3, 6, 6, 6

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write out an int of thousands of digits.
        return repr(x) if abs(x) < 10**30 else f"a whole number of {x.bit_length()} bits"


_short = _Short()


def value(x: Any) -> str:
    """`repr` of anything, in one short line; never an error."""
    try:
        return printable(_short.repr(x))
    except Exception:  # a foreign __repr__ may raise anything
        return f"a {type(x).__name__}"
