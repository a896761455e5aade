"""Numbers that forward changes and then asks about: `n > 8`, `n % 100 == 0`, `len(rows) > 8`.

Such a number notes the lines that compare it. Each answer is then turned round in a run of its own: where another graph
follows, a later call computes something else; where none does, forward only counts, or prints now and then.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ...saying.frames import is_users, line_of


class Asked:
    """The questions about counted numbers. lines : (code, place in it) -> (name of the number, the user's line).

    turn : the question whose next answer is turned round.
    """

    def __init__(self) -> None:
        self.lines: dict[tuple[Any, int], tuple[str, str]] = {}
        self.turn: tuple[Any, int] | None = None

    def answer(self, name: str, answer: Any, frame: FrameType) -> Any:
        if answer is NotImplemented or not is_users(frame):
            return answer
        question = frame.f_code, frame.f_lasti
        self.lines.setdefault(question, (name, line_of(frame)))
        if question != self.turn:
            return answer
        self.turn = None  # once: it may be the condition of a loop
        return not answer


def counted(x: Any, name: str, asked: Asked) -> Any:
    """A number, or the numbers in a tuple, with the same value, that note their questions; another value as it is."""
    if type(x) is tuple:
        return tuple([counted(y, name, asked) for y in x])
    kind = {int: _Int, float: _Float}.get(type(x))
    if kind is None:
        return x
    made = kind(x)
    made.name, made.asked = name, asked
    return made


@contextlib.contextmanager
def lengths_counted(names: dict[int, str], asked: Asked) -> Iterator[None]:
    """A context in which `len(container)` gives this thread a number that records where forward uses it.

    names : id of a container -> its name; `len` of other containers is as always.
    """
    plain, here = builtins.len, threading.get_ident()

    def length(x: Any, /) -> int:
        n = plain(x)
        is_ours = id(x) in names and threading.get_ident() == here
        return counted(n, names[id(x)], asked) if is_ours else n  # type: ignore[no-any-return]

    builtins.len = length  # type: ignore[assignment]
    try:
        yield
    finally:
        builtins.len = plain


class _Int(int):
    name: str
    asked: Asked
    __hash__ = int.__hash__


class _Float(float):
    name: str
    asked: Asked
    __hash__ = float.__hash__


def _asks(base: Any, method: str) -> Any:
    plain = getattr(base, method)

    def ask(self: Any, *others: Any) -> Any:
        return self.asked.answer(self.name, plain(self, *others), sys._getframe(1))

    return ask


def _computes(base: Any, method: str) -> Any:
    plain = getattr(base, method)

    def compute(self: Any, *others: Any) -> Any:
        return counted(plain(self, *others), self.name, self.asked)

    return compute


_TWO = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "divmod")
for _kind in (_Int, _Float):
    _base: Any = _kind.__base__
    for _name in ("lt", "le", "eq", "ne", "gt", "ge", "bool"):
        setattr(_kind, f"__{_name}__", _asks(_base, f"__{_name}__"))
    for _name in (*_TWO, *(f"r{x}" for x in _TWO), "neg", "pos", "abs", "round"):
        setattr(_kind, f"__{_name}__", _computes(_base, f"__{_name}__"))
