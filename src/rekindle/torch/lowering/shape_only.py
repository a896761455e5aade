"""Arguments that an op reads for their shape only: a tensor without memory of its own stands in for them.

The backward of max pooling takes the input of the forward op, but reads no number in it. Without this rewrite every schedule
would have to hold that input, or recompute it, until then.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..capture.captured import Captured
from ..operators.node_tensors import storage_bytes
from ..operators.table import by_overload
from .editing import Editor

aten = torch.ops.aten

# op -> (argument that is read for its shape, argument that gives the stand-in its memory)
SHAPE_ONLY = by_overload("shape_only")
_STANDS_IN = "rekindle_stand_in"


def stand_in(edit: Editor, like: fx.Node, memory: fx.Node, reader: fx.Node) -> fx.Node:
    """A tensor with the shape and dtype of `like` that is a view of one element of `memory`."""
    shape = list(like.meta["val"].shape)
    made = edit.call(aten.as_strided.default, (memory, shape, [0] * len(shape)), reader, edit.place(reader))
    made.meta[_STANDS_IN] = True
    return made


def is_stand_in(n: fx.Node) -> bool:
    """Whether the node is a tensor that stands in for another one of its shape."""
    return _STANDS_IN in n.meta


def may_stand_in(like: Any, memory: Any) -> bool:
    """Whether an element of `memory` can stand in for tensor `like`, and `like` takes memory that ops made."""
    if not isinstance(like, fx.Node) or not isinstance(memory, fx.Node) or like.op != "call_function":
        return False
    one, two = like.meta["val"], memory.meta["val"]
    return bool(
        one.is_contiguous() and two.numel() and (one.dtype, one.device) == (two.dtype, two.device)
        and storage_bytes(one) > one.element_size() and 0 not in one.shape
    )  # fmt: skip


def without_shapes(c: Captured) -> Captured:
    """The step with stand-ins in place of all arguments that are read for their shape only. Its nodes are edited."""
    found = [n for n in c.nodes if n.target in SHAPE_ONLY and may_stand_in(*(n.args[i] for i in SHAPE_ONLY[n.target]))]
    if not found:
        return c
    edit = Editor(c, copy=False)
    with edit.at_work():
        for n in found:
            at, memory = SHAPE_ONLY[n.target]
            edit.set_argument(n, at, stand_in(edit, n.args[at], n.args[memory], n))  # type: ignore[arg-type]
    return edit.finish()
