"""The backward of a convolution as two calls: the gradient of the weight, and the gradient of the input.

One call needs the input, the gradient of the result and the gradient of the input at the same time. The gradient of the input
reads no number of the input, and the other call makes no large result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from ..operators.node_tensors import is_member
from .editing import Editor
from .shape_only import may_stand_in, stand_in

CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default
GRADIENT, INPUT, WEIGHT, MASK = 0, 1, 2, 10  # positions of its arguments
_ALL_ARGUMENTS = 11


def may_split(n: fx.Node) -> bool:
    """Whether the op is the backward of a convolution that gives the gradients of both its input and its weight."""
    if n.target is not CONVOLUTION_BACKWARD or len(n.args) != _ALL_ARGUMENTS or n.kwargs:
        return False
    mask: Any = n.args[MASK]
    return bool(mask[0] and (mask[1] or mask[2])) and all(is_member(u) for u in n.users)


def in_two_calls(edit: Editor, nodes: Iterable[fx.Node]) -> None:
    """Replace each op by two: one for the gradients of weight and bias, then one for the gradient of the input.

    nodes : ops for which `may_split` holds.
    """
    for n in nodes:
        mask: Any = n.args[MASK]
        at = edit.place(n)
        weight = edit.call(n.target, (*n.args[:MASK], [False, *mask[1:]]), n, at)
        args = list(n.args[:MASK])
        if may_stand_in(args[INPUT], args[GRADIENT]):
            args[INPUT] = stand_in(edit, args[INPUT], args[GRADIENT], n)  # type: ignore[arg-type]
        data = edit.call(n.target, (*args, [True, False, False]), n, (*at, 1.0))
        for u in list(n.users):
            index: Any = u.args[1]
            edit.replace(u, edit.call(u.target, (weight if index else data, index), u, edit.place(u)))
