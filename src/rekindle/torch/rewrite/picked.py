"""The loss of a classifier in two steps: the log-probabilities of the targets are picked first, then their mean is taken.

`nll_loss_forward` reads one number of each row, and yet it takes all rows at once. Picked into one column, those numbers can
come from slices of the rows; the same kernel on the column adds them up in the same order, so that the loss has the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..operators.node_tensors import is_member
from .editing import Editor

aten = torch.ops.aten
_ALL_ARGUMENTS = 5  # log-probabilities, targets, weights of classes, reduction, the target that is ignored


def may_pick(n: fx.Node) -> bool:
    """Whether the op is a loss over rows of log-probabilities, without weights of classes."""
    if n.target is not aten.nll_loss_forward.default or len(n.args) != _ALL_ARGUMENTS or n.args[2] is not None:
        return False
    rows: Any = n.args[0]
    return bool(rows.meta["val"].dim() == 2) and all(is_member(u) for u in n.users)


def pick_first(edit: Editor, n: fx.Node) -> None:
    """Let the op, which `may_pick`, take one column of picked log-probabilities."""
    rows, targets, weights, reduction, ignored = n.args
    at = edit.place(n)

    def call(target: Any, *args: Any) -> fx.Node:
        return edit.call(target, args, n, at)

    passed_over = call(aten.eq.Scalar, targets, ignored)
    classes = call(aten.masked_fill.Scalar, targets, passed_over, 0)
    column = call(aten.gather.default, rows, 1, call(aten.unsqueeze.default, classes, 1))
    zeros = call(aten.mul.Scalar, targets, 0)
    no_class = -1  # in the column every target is class 0, which may be the one that is ignored
    first = call(aten.masked_fill.Scalar, zeros, passed_over, no_class)
    made = call(n.target, column, first, weights, reduction, no_class)
    for u in list(n.users):
        edit.replace(u, edit.call(u.target, (made, u.args[1]), u, edit.place(u)))
