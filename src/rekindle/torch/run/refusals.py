"""Calls that were found to run plain, so that the next one like them costs a look instead of a search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..capture.guards import Expected, Guards
from ..capture.module_call import Key
from .bound_plans import BoundPlans

MOST = 8  # plans for calls of the same shapes that ran at most TWICE each; then something varies from call to call
TWICE = 2  # a plan that ran more often is no waste: a rate that changes with each epoch may go on changing
MOST_TRIES = 3  # states of the module in which one call could not be planned, after which it is not tried again


@dataclass(frozen=True)
class _Varying:
    """names : parameters of forward whose arguments vary. rest : the key of a call without those. guards : the state of the
    module, but for what varies in it."""

    names: frozenset[Any]
    rest: Key
    guards: Guards


class Refusals:
    """Of one planned module, whose plans are `plans`."""

    def __init__(self, plans: BoundPlans) -> None:
        self._plans = plans
        self._failed: dict[Key, list[Guards]] = {}  # calls that cannot be planned, by states of the module
        self._varying: list[_Varying] = []

    def hold(self, model: nn.Module, key: Key) -> bool:
        """Whether it is known that this call runs plain."""
        failed = self._failed.get(key, ())
        if len(failed) >= MOST_TRIES or any(g.hold(model) for g in failed):
            return True
        return any(
            _without(key, v.names) == v.rest and self._tried(key) >= MOST and v.guards.hold(model)
            for v in self._varying
        )

    def add(self, model: nn.Module, key: Key) -> None:
        """In the module's present state this call cannot be planned."""
        self._failed.setdefault(key, []).append(Guards(model, Expected.of(model)))

    def what_varies(self, model: nn.Module, key: Key) -> str:
        """Why so many plans were made for calls of the same shapes that another one is not worth it; "" where they were not.
        It is remembered of calls that differ from this one in nothing else."""
        count = self._tried(key)
        if count < MOST:
            return ""
        alike = [k for k in (*self._keys(), *self._failed) if k[0] == key[0]]
        names = [x for x, values in _by_name([k[1] for k in (*alike, key)]) if len(set(values)) > 1]
        like = next((b for b in self._plans if b.trace.key[0] == key[0]), None)
        expected = None if like is None else like.trace.expected
        changed: list[str] = []
        if not names:
            family = self._plans.family(key)
            changed = list(dict.fromkeys(d for b in family for d in b.trace.expected.differences(model)))
        if expected is not None:
            state = Expected.of(model, expected.reads, {*expected.ignored, *changed})
            self._varying = self._varying[-MOST:]
            self._varying.append(_Varying(frozenset(names), _without(key, names), Guards(model, state)))
        what = ", ".join([*map(str, names), *changed]) or "the values of its inputs"
        return f"{what} differ from call to call: {count} plans were tried"

    def let_go(self) -> None:
        """Keep no submodule and no attribute alive until the next look."""
        for guards in (*(g for family in self._failed.values() for g in family), *(v.guards for v in self._varying)):
            guards.let_go()

    def _keys(self) -> list[Key]:
        return list(dict.fromkeys(b.trace.key for b in self._plans))

    def _tried(self, key: Key) -> int:
        """Plans that calls of the same shapes did not use for long, and calls that could not be planned."""
        count = sum(b.uses <= TWICE for b in self._plans if b.trace.key[0] == key[0])
        return count + sum(k[0] == key[0] for k in self._failed)


def _without(key: Key, names: Any) -> Key:
    """The key of a call, whatever the arguments of these names are."""
    shapes, constants, surroundings = key
    rest = [(k, x) for table in _tables([constants]) for k, x in table.items() if k not in names]
    return shapes, tuple(rest), surroundings


def _tables(constants: list[Any]) -> list[dict[Any, Any]]:
    return [dict(zip(names or (), values, strict=False)) for _, names, values, *_ in constants]


def _by_name(constants: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """(parameter of forward, what calls gave for it)."""
    tables = _tables(constants)
    for name in dict.fromkeys(k for t in tables for k in t):
        yield name, [t.get(name) for t in tables]
