"""Reads and refills lists, deques, dicts and sets by Python's own methods, past overrides of their subclasses.

A subclass may compute its answers: a registry, say, that builds an object whenever it is asked for a class. Reading it must not
build one, and refilling it must not leave objects where classes were.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any


def entries(x: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """The stored (key, value) pairs of a dict, in its order."""
    if not isinstance(x, OrderedDict):
        return iter(dict.items(x))
    return (
        (k, dict.__getitem__(x, k)) for k in OrderedDict.__iter__(x)
    )  # an OrderedDict keeps its order apart from its dict's


def content(x: Any) -> Any:
    """A plain copy of a list, deque, dict or set: a list, a dict or a set."""
    if isinstance(x, dict):
        return dict(entries(x))
    if isinstance(x, set):
        return set(set.__iter__(x))
    return list(deque.__iter__(x) if isinstance(x, deque) else list.__iter__(x))


def refill(x: Any, held: Any) -> None:
    """Make a list, deque, dict or set hold what `content` returned."""
    kind: Any = next(k for k in (OrderedDict, dict, set, deque, list) if isinstance(x, k))
    kind.clear(x)
    if isinstance(x, dict):
        for k, v in held.items():
            kind.__setitem__(x, k, v)
    elif isinstance(x, set):
        set.update(x, held)
    else:
        kind.extend(x, held)
