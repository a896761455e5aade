"""Keys of objects by identity."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any


class Same:
    """A key that equals only the key of the same object, and keeps it alive only where Python has no weak reference."""

    __slots__ = ("_hash", "_of")

    def __init__(self, x: Any):
        self._hash = id(x)
        self._of: Callable[[], Any]
        try:
            self._of = weakref.ref(x)
        except TypeError:
            self._of = functools.partial(_itself, x)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same):
            return NotImplemented
        mine = self._of()
        return mine is not None and mine is other._of()

    def __repr__(self) -> str:
        x = self._of()
        return getattr(x, "__qualname__", None) or f"a {type(x).__name__}"


def apart_from_identity(key: Any) -> Any:
    """The key without the identities in it: equal for keys that differ only in which objects they name."""
    if isinstance(key, tuple | frozenset):
        return type(key)(map(apart_from_identity, key)) if type(key) in (tuple, frozenset) else key
    return Same if isinstance(key, Same) else key


def _itself(x: Any) -> Any:
    return x
