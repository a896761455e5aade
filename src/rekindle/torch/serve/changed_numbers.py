"""Calls that differ from a planned call only in Python numbers, and whether these leave the graph as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..private import pytree
from ..run.bound import BoundPlan
from ..situation.module_call import Key, ModuleCall
from ..situation.numbers import Attribute, Place, name_of, numbers_in, replaced
from ..situation.values import constants, key_of


def changed_numbers(
    model: nn.Module, key: Key, call: ModuleCall, bound: BoundPlan
) -> tuple[BoundPlan, tuple[Place, ...]] | None:
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


def numbers_of(bound: BoundPlan, places: tuple[Place, ...]) -> dict[Place, Any] | None:
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


def matches(found: Any, earlier: Any, before: Mapping[Place, Any]) -> bool:
    """Whether a step captured with markers is the same as an earlier capture with the numbers `before`.

    Both must have the same ops with the same constants; a marker matches the value of its expression for `before`.
    """
    one, two = found.nodes, earlier.nodes
    if len(one) != len(two):
        return False
    place = {n: i for i, n in enumerate([*found.placeholders, *found.tangents, *one])}
    place_before = {n: i for i, n in enumerate([*earlier.placeholders, *earlier.tangents, *two])}

    def leaves(n: Any, at: Mapping[Any, int]) -> list[Any]:
        return [
            ("node", at.get(x)) if hasattr(x, "all_input_nodes") else x for x in pytree.tree_leaves((n.args, n.kwargs))
        ]

    def same(x: Any, y: Any) -> bool:
        expression = found.numbers.markers.get(x) if type(x) in (int, float) else None
        return key_of(x if expression is None else expression.value(before)) == key_of(y)

    def same_call(a: Any, b: Any) -> bool:
        xs, ys = leaves(a, place), leaves(b, place_before)
        return a.target == b.target and len(xs) == len(ys) and all(map(same, xs, ys))

    if not all(map(same_call, one, two)):
        return False
    written = [[c.writing[n].target if n in c.writing else None for n in c.nodes] for c in (found, earlier)]
    if written[0] != written[1]:
        return False
    constants = [c.constants.values() for c in (found, earlier)]
    return len(constants[0]) == len(constants[1]) and all(map(_same_tensor, *constants))


def _same_tensor(s: torch.Tensor, t: torch.Tensor) -> bool:
    return s is t or (s.shape, s.dtype, s.device) == (t.shape, t.dtype, t.device) and torch.equal(s, t)
