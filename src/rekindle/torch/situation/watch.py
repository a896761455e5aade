"""A quick check that values are unchanged: places that a walk met, and the objects that stood in them."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from operator import is_
from typing import Any

from ..tensors.arrays import Key, array_key


class Watch:
    """The places that a walk met, and the objects in them when it ended.

    own : ids of modules that count by identity, since guards look into them.
    """

    def __init__(self, own: Collection[int] = ()) -> None:
        self.own = own
        self.kinds: dict[int, tuple[Any, Key]] = {}  # classes and Python modules that a walk met, and their keys
        self.functions: list[types.FunctionType] = []  # that a walk met
        self._arrays: list[Any] = []
        self._tables: list[dict[Any, Any]] = []
        self._rows: list[Any] = []
        self._cells: list[Any] = []
        self._slots: list[tuple[Any, str]] = []
        self._parts: list[tuple[Mapping[str, Any], tuple[str, ...]]] = []
        self._held: list[Any] = []
        self._counts: list[Any] = []

    def table(self, x: dict[Any, Any]) -> None:
        self._tables.append(x)

    def part(self, x: Mapping[str, Any], names: Iterable[str]) -> None:
        """Watch the values under these names, and the number of all names."""
        self._parts.append((x, tuple(names)))

    def slot(self, x: Any, name: str) -> None:
        self._slots.append((x, name))

    def row(self, x: Any) -> None:
        self._rows.append(x)

    def cell(self, x: Any) -> None:
        self._cells.append(x)

    def array(self, x: Any) -> None:
        self._arrays.append(x)

    def close(self) -> None:
        """Remember the objects that stand in all places now."""
        self._held = [*self._values()]
        self._counts = self._sizes()

    def unchanged(self) -> bool:
        """Whether every place holds the very same object as when the walk ended."""
        try:
            now = [*self._values()]
        except (RuntimeError, ValueError):  # a container changed meanwhile; a cell is empty
            return False
        return len(now) == len(self._held) and all(map(is_, now, self._held)) and self._sizes() == self._counts

    def _values(self) -> chain[Any]:
        cells = [c.cell_contents for c in self._cells]
        tables = chain.from_iterable([chain(dict.keys(t), dict.values(t)) for t in self._tables])
        slots = [getattr(x, name, _MISSING) for x, name in self._slots]
        parts = [t.get(name, _MISSING) for t, names in self._parts for name in names]
        return chain(tables, chain.from_iterable(self._rows), cells, slots, parts)

    def _sizes(self) -> list[Any]:
        return [*map(array_key, self._arrays), *[len(t) for t, _ in self._parts]]


_MISSING: Any = object()
