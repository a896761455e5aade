"""Runs ops whose result has as many elements as a mask has true ones, where that number is known.

Tensors without data cannot say how many elements boolean indexing selects. Where the number is known, the indices of the
elements come from an op of fixed size, and the same elements are selected in the same order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..private import DispatchKey

aten = torch.ops.aten

Count = Callable[[torch.Tensor], int | None]  # the number of elements of a mask that are not zero; None: unknown
SELECTIONS = {aten.nonzero.default, aten.masked_select.default}
_INDEXING: tuple[Any, ...] = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)


def selected(func: Any, args: Any, count: Count) -> torch.Tensor | None:
    """The result of an op of `SELECTIONS`; None: the number of selected elements is unknown."""
    mask = args[-1]
    size = count(mask)
    if size is None:
        return None
    if func is aten.nonzero.default:
        return aten.nonzero_static.default(mask, size=size)
    values, whole = torch.broadcast_tensors(*args)
    size = size * whole.numel() // mask.numel() if mask.numel() else 0
    return aten.index.Tensor(values, aten.nonzero_static.default(whole, size=size).unbind(1))


@contextlib.contextmanager
def indices_for_masks(count: Count) -> Iterator[None]:
    """Inside, indexing by a mask of known count is indexing by the places of its true elements, for autograd too.

    Its backward indexes again, and has to know the number of elements as well.
    """
    key = DispatchKey.Autograd

    def listen(on: bool) -> None:
        for op in _INDEXING:
            op.py_kernels.pop(key, None)
            if kernel := (kernels if on else before)[op]:
                op.py_kernels[key] = kernel
            op._dispatch_cache.clear()

    def indexing(op: Any) -> Callable[..., Any]:
        def index(x: torch.Tensor, places: Sequence[torch.Tensor | None], *rest: Any, **how: Any) -> Any:
            # Without values that require grad, backward of index_put selects nothing.
            selects = op is aten.index.Tensor or rest[0].requires_grad
            listen(False)
            try:
                return op(x, _as_indices(places, count) if selects else places, *rest, **how)
            finally:
                listen(True)

        return index

    kernels = {op: indexing(op) for op in _INDEXING}
    before = {op: op.py_kernels.get(key) for op in _INDEXING}  # of a context around this one
    listen(True)
    try:
        yield
    finally:
        listen(False)
        kernels.clear()  # a circle of references that would keep the tensors behind `count` alive


def _as_indices(places: Sequence[torch.Tensor | None], count: Count) -> list[torch.Tensor | None]:
    found: list[torch.Tensor | None] = []
    for t in places:
        size = count(t) if t is not None and t.dtype in (torch.bool, torch.uint8) else None
        found += [t] if t is None or size is None else aten.nonzero_static.default(t, size=size).unbind(1)
    return found
