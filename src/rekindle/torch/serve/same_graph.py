"""Whether two captures, one with markers for numbers and one without, are the same graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..private import pytree
from ..situation.numbers import Numbers, Place
from ..situation.values import key_of


def matches(found: Any, earlier: Any, numbers: Numbers, before: Mapping[Place, Any]) -> bool:
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
        expression = numbers.markers.get(x) if type(x) in (int, float) else None
        return key_of(x if expression is None else expression.value(before)) == key_of(y)

    def same_call(a: Any, b: Any) -> bool:
        xs, ys = leaves(a, place), leaves(b, place_before)
        return a.target == b.target and len(xs) == len(ys) and all(map(same, xs, ys))

    if not all(map(same_call, one, two)):
        return False
    written: Sequence[tuple[Any, Any]] = [
        (found.writing.get(a), earlier.writing.get(b)) for a, b in zip(one, two, strict=True)
    ]
    for a, b in written:
        if (a is None) != (b is None) or a is not None and a.target != b.target:
            return False
    constants = [c.constants.values() for c in (found, earlier)]
    return len(constants[0]) == len(constants[1]) and all(map(_same_tensor, *constants))


def _same_tensor(s: torch.Tensor, t: torch.Tensor) -> bool:
    return s is t or (s.shape, s.dtype, s.device) == (t.shape, t.dtype, t.device) and torch.equal(s, t)
