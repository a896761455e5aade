"""The fake results of new ops: slices of one op have results that are laid out alike, so one of them is asked for them.

A fake kernel may take milliseconds (the backward of a batch norm runs its decomposition), an empty fake tensor microseconds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..operators.node_tensors import tensors_of
from ..private import OpOverload

Layout = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]


def value(n: fx.Node) -> Any:
    """The fake result of an op on the fake tensors of its arguments."""
    args, kwargs = fx.node.map_arg((n.args, n.kwargs), lambda a: a.meta["val"])
    return n.target(*args, **kwargs)  # type: ignore[operator]


class FreshResults:
    """Results of ops in memory of their own, remembered by op and arguments. Used inside `Editor.at_work`."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[bool, list[Layout | None]]] = {}

    def of(self, n: fx.Node) -> Any:
        """The fake result of an op."""
        if not isinstance(n.target, OpOverload):
            return value(n)
        key = f"{n.target} {fx.node.map_arg((n.args, n.kwargs), _described)}"
        if key in self._known:
            several, layouts = self._known[key]
            made = [x and torch.empty_strided(x[0], x[1], dtype=x[2], device=x[3]) for x in layouts]
            return tuple(made) if several else made[0]
        found = value(n)
        several = isinstance(found, tuple | list)
        members = list(found) if several else [found]
        if _in_own_memory(members, n):
            self._known[key] = several, [None if t is None else _layout(t) for t in members]
        return found


def _described(n: fx.Node) -> Any:
    """What the layout of a result may depend on, as text can show it."""
    tensors = tensors_of(n)
    return [(i, *_layout(t)) for i, t in tensors] if tensors else n.meta.get("val")


def _layout(t: torch.Tensor) -> Layout:
    return t.shape, t.stride(), t.dtype, t.device


def _in_own_memory(members: list[Any], n: fx.Node) -> bool:
    """Whether an empty tensor of its layout can stand for each member of a result: each fills a storage of its own."""
    taken = {t.untyped_storage()._cdata for a in n.all_input_nodes for _, t in tensors_of(a)}
    for t in members:
        if t is None:
            continue
        if not isinstance(t, torch.Tensor) or t.layout is not torch.strided or 1 in t.shape:
            return False  # rules of eager's strides look at dimensions of size one
        storage = t.untyped_storage()
        if storage._cdata in taken or t.storage_offset() or storage.nbytes() != _span_bytes(t):
            return False
        taken.add(storage._cdata)
    return True


def _span_bytes(t: torch.Tensor) -> int:
    """Bytes from the first to the last element of a tensor."""
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return (last + 1) * t.element_size() if t.numel() else 0
