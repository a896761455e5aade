"""Lists, dicts and sets read and refilled by Python's own methods.

A subclass may answer otherwise: a registry that builds an object whenever it is asked for a class, say. Looking at it must not
build one, and putting it back must not leave objects where classes were.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any


def entries(x: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """(key, value) pairs of a dict, in its order, as it holds them."""
    if not isinstance(x, OrderedDict):
        return iter(dict.items(x))
    return ((k, dict.__getitem__(x, k)) for k in OrderedDict.__iter__(x))  # its order is not that of the dict it is


def content(x: Any) -> Any:
    """A plain copy of a list, deque, dict or set: a list, a dict or a set."""
    if isinstance(x, dict):
        return dict(entries(x))
    if isinstance(x, set):
        return set(set.__iter__(x))
    return list(deque.__iter__(x) if isinstance(x, deque) else list.__iter__(x))


def refill(x: Any, held: Any) -> None:
    """Make a list, deque, dict or set hold what `content` gave."""
    kind: Any = next(k for k in (OrderedDict, dict, set, deque, list) if isinstance(x, k))
    kind.clear(x)
    if isinstance(x, dict):
        for k, v in held.items():
            kind.__setitem__(x, k, v)
    elif isinstance(x, set):
        set.update(x, held)
    else:
        kind.extend(x, held)
