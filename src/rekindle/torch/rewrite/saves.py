"""Backward reads a smaller save: the sign of each element where it took a ReLU's result, the bits of a dropout's mask, the
place in its window where it took the index of each maximum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ..operators import rules
from ..operators.node_tensors import is_member
from ..operators.pool_offsets import MAX_POOL2D_BACKWARD_BY_OFFSETS, POOL_OFFSETS
from ..operators.small_saves import DROPOUT_BACKWARD_BY_BITS, PACK_MASK, SIGN_BITS, ZERO_BY_BITS
from .editing import Editor

aten = torch.ops.aten
Saves = dict[tuple[Any, ...], fx.Node]


def _signs(edit: Editor, n: fx.Node, known: Saves) -> fx.Node:
    gradient, y, _ = n.args
    bits = _saved(edit, known, SIGN_BITS, y)
    return edit.call(ZERO_BY_BITS, (gradient, bits, list(_tensor(y).stride())), n, edit.place(n))


def _mask(edit: Editor, n: fx.Node, known: Saves) -> fx.Node:
    gradient, mask, scale = n.args
    bits = _saved(edit, known, PACK_MASK, mask)
    args = (gradient, bits, list(_tensor(mask).stride()), scale)
    return edit.call(DROPOUT_BACKWARD_BY_BITS, args, n, edit.place(n))


def _offsets(edit: Editor, n: fx.Node, known: Saves) -> fx.Node:
    gradient, x, *window, ceil_mode, indices = n.args
    size, strides = list(_tensor(x).shape), list(_tensor(n).stride())
    offsets = _saved(edit, known, POOL_OFFSETS, indices, size, *window)
    args = (gradient, offsets, size, strides, *window, ceil_mode)
    return edit.call(MAX_POOL2D_BACKWARD_BY_OFFSETS, args, n, edit.place(n))


_ALL_ARGUMENTS: dict[Any, int] = {aten.threshold_backward.default: 3, aten.native_dropout_backward.default: 3,
                  aten.max_pool2d_with_indices_backward.default: 8}  # fmt: skip
# op -> (position of the argument that is saved, the rewrite)
_REWRITES: dict[Any, tuple[int, Callable[[Editor, fx.Node, Saves], fx.Node]]] = {
    aten.threshold_backward.default: (1, _signs),
    aten.native_dropout_backward.default: (1, _mask),
    aten.max_pool2d_with_indices_backward.default: (7, _offsets),
}


def saves(n: fx.Node) -> torch.Tensor | None:
    """The tensor that the op reads and for which a smaller save can stand; None: there is none."""
    if n.target not in _REWRITES or len(n.args) != _ALL_ARGUMENTS[n.target] or n.kwargs:
        return None
    if n.target is aten.threshold_backward.default and n.args[2] != 0:
        return None
    a: Any = n.args[_REWRITES[n.target][0]]
    made = isinstance(a, fx.Node) and a.op == "call_function"
    if n.target is aten.max_pool2d_with_indices_backward.default and _tensor(n.args[0]).dim() != 4:
        return None
    return _tensor(a) if made else None


def save_less(edit: Editor, nodes: list[fx.Node]) -> None:
    """Let each op read a smaller save. nodes : ops for which `saves` gives a tensor."""
    known: Saves = {}
    for n in nodes:
        edit.replace(n, _REWRITES[n.target][1](edit, n, known))


def _saved(edit: Editor, known: Saves, target: Any, a: Any, *args: Any) -> fx.Node:
    """The smaller save of tensor `a`, made as soon as the tensor is there."""
    while a.target in rules.PASS_THROUGH:  # backward reads tensors by names that autograd made late
        a = a.args[0]
    key = (target, a, repr(args))
    if key not in known:
        maker = a.args[0] if is_member(a) else a
        known[key] = edit.call(target, (a, *args), maker, (*edit.place(a), 0.75))
    return known[key]


def _tensor(n: Any) -> torch.Tensor:
    val: torch.Tensor = n.meta["val"]
    return val
