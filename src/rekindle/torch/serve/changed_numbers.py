"""Finds calls that differ from a planned call only in Python numbers."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import nn

from ..run.bound import Bound
from ..situation.module_call import Key, ModuleCall
from ..situation.numbers import Attribute, Place, name_of, numbers_in, replaced
from ..situation.values import constants, key_of


def changed_numbers(
    model: nn.Module, key: Key, call: ModuleCall, bound: Bound
) -> tuple[Bound, tuple[Place, ...]] | None:
    """(the plan, places of the numbers that differ) if the call differs from the planned one only in numbers; else None."""
    theirs = bound.trace
    if (theirs.key[0], theirs.key[2]) != (key[0], key[2]) or bound.numbers.places or theirs.fake:
        return None
    ours, was = numbers_in(call.spec), numbers_in(theirs.spec)
    places: list[Place] = [
        p for p in ours if p in was and type(ours[p]) is type(was[p]) and key_of(ours[p]) != key_of(was[p])
    ]
    if constants(replaced(call.spec, {p: None for p in places})) != constants(
        replaced(theirs.spec, {p: None for p in places})
    ):
        return None
    for name in theirs.expected.differences(model):
        path, _, leaf = name.rpartition(".")
        key_before = theirs.expected.keys.get(name)
        x = None
        with contextlib.suppress(AttributeError):
            x = model.get_submodule(path).__dict__.get(leaf)
        if type(x) not in (int, float) or not isinstance(key_before, tuple) or key_before[0] is not type(x):
            return None
        places.append(Attribute(path, leaf))
    return (bound, tuple(places)) if places else None


def numbers_of(bound: Bound, places: tuple[Place, ...]) -> dict[Place, Any] | None:
    """The numbers that stood at these places when the plan was made."""
    was = numbers_in(bound.trace.spec)
    found: dict[Place, Any] = {}
    for p in places:
        if isinstance(p, Attribute):
            kind, text = bound.trace.expected.keys[name_of(p, None)]
            found[p] = float.fromhex(text) if kind is float else text
        else:
            found[p] = was[p]
    return found
