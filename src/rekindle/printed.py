"""Makes strings and numbers from files and models safe to print: they hold nothing that a terminal would obey."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable
from typing import Any

NAME_MOST_LETTERS = 200
MESSAGE_MOST_LETTERS = 4_000
LISTED_MOST = 5  # names in a message


def printable(text: str, keep: str = "") -> str:
    """The text with every unprintable character spelled out: "\\x1b[2J" for the escape that clears a screen.

    Control characters, line breaks, invisible marks and lone surrogates are spelled out, except those in `keep`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)


def shortened(text: str) -> str:
    """A message without the middle of its long words, and without its own middle if it is long: an error does not repeat all
    that it was given."""
    if len(text) <= NAME_MOST_LETTERS:
        return text
    text = re.sub(rf"(\S{{{NAME_MOST_LETTERS}}})\S*?(\S{{20}})(?!\S)", r"\1…\2", text)
    half = MESSAGE_MOST_LETTERS // 2
    return text if len(text) <= 2 * half else f"{text[:half]} … {text[-half:]}"


def first_line(e: BaseException) -> str:
    """The first line of an error's message that says something."""
    return next((x for x in str(e).splitlines() if x.strip()), "").strip()


def name(text: str) -> str:
    """A name that is safe to print: `printable`, and cut to 200 characters."""
    text = text if len(text) <= NAME_MOST_LETTERS else text[: NAME_MOST_LETTERS - 1] + "…"
    return printable(text)


def listed(names: Iterable[str], most: int = LISTED_MOST) -> str:
    """The names in a message: the first few, each once, and how many more there are."""
    every = [*dict.fromkeys(names)]
    return ", ".join(every[:most]) + (f" and {len(every) - most:,} more" if len(every) > most else "")


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
