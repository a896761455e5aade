"""Iterators that code of a model may take items of. Nothing puts an item back, so that taking one is refused by its line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from torch import nn

from ...errors import TraceError
from ...saying.frames import in_short, line_of, users_frame
from ..tensors.objects import slots_of
from .restorable import Restorable, restorable


class Refused:
    """Stands for an iterator, and refuses its items to the thread that made this. name : of its place, for messages."""

    __slots__ = ("iterator", "name", "thread")

    def __init__(self, iterator: Any, name: str):
        self.iterator, self.name, self.thread = iterator, name, threading.get_ident()

    def __iter__(self) -> Refused:
        return self

    def __next__(self) -> Any:
        return next(self.iterator) if threading.get_ident() != self.thread else self._refuse()

    def __getattr__(self, name: str) -> Any:  # `send`, `close`
        if name[:2] == "__":
            raise AttributeError(name)
        return getattr(self.iterator, name) if threading.get_ident() != self.thread else self._refuse()

    def _refuse(self) -> NoReturn:
        frame = users_frame()
        line = "" if frame is None else line_of(frame)
        raise TraceError(
            f"forward takes items of an iterator ({type(self.iterator).__name__} {self.name}) at {line or 'an unknown line'}, "
            "which no one can put back, and a planned step would not take any. Take the item outside of forward and pass it "
            "in; or keep a list and a position",
            line=in_short(line),
            reason="takes items of an iterator",
        )


class Iterators:
    """The iterators that a model's modules and these objects hold, out of reach between `take` and `give_back`."""

    def __init__(self, model: nn.Module, objects: Iterable[Restorable]):
        every = [*objects, *_in_attributes(model)]
        refused = [_replaced(w.before, lambda x, k: Refused(x, k) if is_iterator(x) else x) for w in every]
        self._holders = [(w, new) for w, new in zip(every, refused, strict=True) if new is not None]
        self.take()

    def take(self) -> None:
        """Put objects that refuse into the places of the iterators."""
        for w, new in self._holders:
            w.write(new)

    def give_back(self) -> None:
        """Put the iterators into their places, unless these hold something else now."""
        for w, _ in self._holders:
            new = _replaced(w.read(), lambda x, k: x.iterator if isinstance(x, Refused) else x)
            if new is not None:
                w.write(new)


def is_iterator(x: Any) -> bool:
    """Whether x gives items one by one, and has no fields by which it could be put back."""
    kind = type(x)
    return hasattr(kind, "__next__") and kind.__dictoffset__ == 0 and not slots_of(kind)


def _in_attributes(model: nn.Module) -> Iterable[Restorable]:
    for m in model.modules():
        table = vars(m)
        for x in [table, *table.values()]:
            if type(x) in (dict, list) and any(map(is_iterator, x.values() if type(x) is dict else x)):
                made = restorable(x)
                if made is not None:
                    yield made


def _replaced(content: Any, f: Callable[[Any, str], Any]) -> Any:
    """The content of an object with other entries; None: `f` changes none."""
    if isinstance(content, dict):
        new = {k: f(x, f"under {k!r}") for k, x in content.items()}
        return new if any(new[k] is not x for k, x in content.items()) else None
    if isinstance(content, list):
        row = [f(x, f"number {i + 1}") for i, x in enumerate(content)]
        return row if any(a is not b for a, b in zip(row, content, strict=True)) else None
    new = f(content, "in a variable")
    return None if new is content else new
