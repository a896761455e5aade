"""Rewrites without slices: smaller saves, the backward of a convolution as two calls, and losses that pick first.

Backward reads a smaller save: the sign of each element where it took a ReLU's result, the bits of a dropout's mask, the place
in its window where it took the index of each maximum.

One call of a convolution's backward needs the input, the gradient of the result and the gradient of the input at the same time.
As two calls, the gradient of the input reads no number of the input, and the gradient of the weight makes no large result.

`nll_loss_forward` reads one number of each row, and yet it takes all rows at once. Picked into one column, those numbers can
come from slices of the rows; the same kernel on the column adds them up in the same order, so that the loss has the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from ...model import rewriting as kinds
from ..lowering.editing import Editor
from ..lowering.shape_only import may_stand_in, stand_in
from ..operators import rules
from ..operators.node_tensors import is_member
from ..operators.pool_offsets import MAX_POOL2D_BACKWARD_BY_OFFSETS, POOL_OFFSETS
from ..operators.small_saves import DROPOUT_BACKWARD_BY_BITS, PACK_MASK, SIGN_BITS, ZERO_BY_BITS

aten = torch.ops.aten
Saves = dict[tuple[Any, ...], fx.Node]


def _call(edit: Editor, n: fx.Node, target: Any, *args: Any) -> fx.Node:
    """A new op in the place of op n."""
    return edit.call(target, args, n, edit.place(n))


# -- smaller saves ---------------------------------------------------------------------------------------------------
def _signs(edit: Editor, n: fx.Node, known: Saves) -> fx.Node:
    gradient, y, _ = n.args
    bits = _saved(edit, known, SIGN_BITS, y)
    return _call(edit, n, ZERO_BY_BITS, gradient, bits, list(_tensor(y).stride()))


def _mask(edit: Editor, n: fx.Node, known: Saves) -> fx.Node:
    gradient, mask, scale = n.args
    bits = _saved(edit, known, PACK_MASK, mask)
    return _call(edit, n, DROPOUT_BACKWARD_BY_BITS, gradient, bits, list(_tensor(mask).stride()), scale)


def _offsets(edit: Editor, n: fx.Node, known: Saves) -> fx.Node:
    gradient, x, *window, ceil_mode, indices = n.args
    size, strides = list(_tensor(x).shape), list(_tensor(n).stride())
    offsets = _saved(edit, known, POOL_OFFSETS, indices, size, *window)
    return _call(edit, n, MAX_POOL2D_BACKWARD_BY_OFFSETS, gradient, offsets, size, strides, *window, ceil_mode)


@dataclass(frozen=True)
class _Smaller:
    """How an op reads a smaller save.

    position : of the argument that is saved. arguments : how many the op is called with.
    """

    position: int
    arguments: int
    rewrite: Callable[[Editor, fx.Node, Saves], fx.Node]


SMALLER: dict[Any, _Smaller] = {
    aten.threshold_backward.default: _Smaller(1, 3, _signs),
    aten.native_dropout_backward.default: _Smaller(1, 3, _mask),
    aten.max_pool2d_with_indices_backward.default: _Smaller(7, 8, _offsets),
}


def saves(n: fx.Node) -> torch.Tensor | None:
    """The tensor that the op reads and for which a smaller save can stand; None: there is none."""
    how = SMALLER.get(n.target)
    if how is None or len(n.args) != how.arguments or n.kwargs:
        return None
    if n.target is aten.threshold_backward.default and n.args[2] != 0:
        return None
    a: Any = n.args[how.position]
    made = isinstance(a, fx.Node) and a.op == "call_function"
    if n.target is aten.max_pool2d_with_indices_backward.default and _tensor(n.args[0]).dim() != 4:
        return None
    return _tensor(a) if made else None


def save_less(edit: Editor, nodes: Iterable[fx.Node]) -> None:
    """Let each op read a smaller save. nodes : ops for which `saves` gives a tensor."""
    known: Saves = {}
    for n in nodes:
        edit.replace(n, SMALLER[n.target].rewrite(edit, n, known))


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


# -- the backward of a convolution -----------------------------------------------------------------------------------
_CONVOLUTION_BACKWARD = aten.convolution_backward.default
_GRADIENT, _INPUT, _MASK = 0, 1, 10  # positions of its arguments
_ARGUMENTS_OF_CONVOLUTION = 11


def may_split(n: fx.Node) -> bool:
    """Whether the op is the backward of a convolution that gives the gradients of both its input and its weight."""
    if n.target is not _CONVOLUTION_BACKWARD or len(n.args) != _ARGUMENTS_OF_CONVOLUTION or n.kwargs:
        return False
    mask: Any = n.args[_MASK]
    return bool(mask[0] and (mask[1] or mask[2])) and all(is_member(u) for u in n.users)


def in_two_calls(edit: Editor, nodes: Iterable[fx.Node]) -> None:
    """Replace each op by two: one for the gradients of weight and bias, then one for the gradient of the input.

    nodes : ops for which `may_split` holds.
    """
    for n in nodes:
        mask: Any = n.args[_MASK]
        weight = _call(edit, n, n.target, *n.args[:_MASK], [False, *mask[1:]])
        args = list(n.args[:_MASK])
        if may_stand_in(args[_INPUT], args[_GRADIENT]):
            args[_INPUT] = stand_in(edit, args[_INPUT], args[_GRADIENT], n)  # type: ignore[arg-type]
        data = edit.call(n.target, (*args, [True, False, False]), n, (*edit.place(n), 1.0))
        for u in list(n.users):
            index: Any = u.args[1]
            edit.replace(u, _call(edit, u, u.target, weight if index else data, index))


# -- losses ----------------------------------------------------------------------------------------------------------
_ARGUMENTS_OF_LOSS = 5  # log-probabilities, targets, weights of classes, reduction, the target that is ignored


def may_pick(n: fx.Node) -> bool:
    """Whether the op is a loss over rows of log-probabilities, without weights of classes."""
    if n.target is not aten.nll_loss_forward.default or len(n.args) != _ARGUMENTS_OF_LOSS or n.args[2] is not None:
        return False
    rows: Any = n.args[0]
    return bool(rows.meta["val"].dim() == 2) and all(is_member(u) for u in n.users)


def pick_first(edit: Editor, nodes: Iterable[fx.Node]) -> None:
    """Let each op, which `may_pick`, take one column of picked log-probabilities."""
    no_class = -1  # in the column every target is class 0, which may be the one that is ignored
    for n in nodes:
        rows, targets, weights, reduction, ignored = n.args
        call = functools.partial(_call, edit, n)
        passed_over = call(aten.eq.Scalar, targets, ignored)
        classes = call(aten.masked_fill.Scalar, targets, passed_over, 0)
        column = call(aten.gather.default, rows, 1, call(aten.unsqueeze.default, classes, 1))
        zeros = call(aten.mul.Scalar, targets, 0)
        first = call(aten.masked_fill.Scalar, zeros, passed_over, no_class)
        made = call(n.target, column, first, weights, reduction, no_class)
        for u in list(n.users):
            edit.replace(u, _call(edit, u, u.target, made, u.args[1]))


class Unsliced(NamedTuple):
    """A kind of rewrite. may : whether an op can be rewritten so. of : what such an op is, in words."""

    may: Callable[[fx.Node], bool]
    rewrite: Callable[[Editor, Sequence[fx.Node]], None]
    of: str


UNSLICED = {
    kinds.CONVOLUTIONS: Unsliced(may_split, in_two_calls, "backward of a convolution"),
    kinds.PICKED: Unsliced(may_pick, pick_first, "loss over rows"),
    kinds.SAVES: Unsliced(
        lambda n: saves(n) is not None, save_less, "reader of a tensor for which there is a smaller save"
    ),
}
