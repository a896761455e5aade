"""Which calls of ops can be recorded as ones that give the same values when they are run again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..operators.rules import UNWRITTEN, draws_random
from ..private import disable_modes, pytree
from ..situation.recorded_ops import Held, Input, Like, RecordedOp, Result

aten = torch.ops.aten

LITERAL_MOST_ELEMENTS = 4096  # of a tensor of given values that a question may hold; a guess

_BY_SHAPE = {aten.zeros_like, aten.ones_like, aten.full_like, aten.new_zeros, aten.new_ones, aten.new_full}
_FILLS = {aten.fill_.Scalar, aten.zero_.default}
_CHANGE_SHAPE = {aten.set_, aten.resize_, aten.resize_as_}  # and ops with the tag `inplace_view`


def tells(func: Any) -> bool:
    """Whether the op's results, and what it writes, depend on its arguments alone."""
    unlike = func._overloadpacket in UNWRITTEN or func._overloadpacket in _CHANGE_SHAPE
    return not unlike and not draws_random(func) and torch.Tag.inplace_view not in func.tags


def by_shape(func: Any, args: Any, kwargs: Any, known: Mapping[int, Input | Held | Result]) -> RecordedOp | None:
    """The call as one that needs only the shape of its first tensor; None: it needs more.

    known : references by the ids of tensors.
    """
    first = args[0] if args else None
    if not isinstance(first, torch.Tensor):
        return None
    if func in _FILLS and not kwargs:
        func, args = aten.full_like.default, (first, args[1] if func is aten.fill_.Scalar else 0)
    if func._overloadpacket not in _BY_SHAPE or func._schema.is_mutable:
        return None
    return func, with_references((args, kwargs | {"device": kwargs.get("device") or first.device}), known)


def filled(t: torch.Tensor, value: bool) -> RecordedOp:
    """An op that makes a tensor of the same shape with this value everywhere."""
    return aten.full.default, ((tuple(t.shape), value), {"dtype": torch.bool, "device": t.device})


def literal(t: Any) -> RecordedOp | None:
    """An op that makes a small tensor of given values, as `torch.tensor([1, 2])` does; None: it is no such tensor."""
    if type(t) is not torch.Tensor or t.layout is not torch.strided or t.numel() > LITERAL_MOST_ELEMENTS:
        return None
    with disable_modes():
        values = t.tolist()
    return torch.tensor, ((values,), {"dtype": t.dtype, "device": t.device})


def with_references(taken: Any, known: Mapping[int, Input | Held | Result]) -> Any:
    """(args, kwargs) in the form of a `RecordedOp`."""

    def reference(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return known[id(x)] if id(x) in known else Like(tuple(x.shape), x.dtype)

    return pytree.tree_map(reference, taken)
