"""Watches the ops of a plain step: which ran, on which tensors, with which shapes and constants."""

from __future__ import annotations

from typing import Any

import torch

from ..capture.private import TorchDispatchMode, tree_leaves


class Witness(TorchDispatchMode):
    """A dispatch mode that notes every op of one step. Two steps with equal `values` did the same.

    values : one row of operators, numbers of storages in the order in which they were first seen, shapes, dtypes and constants.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []
        self._numbers: dict[int, int] = {}  # address of a storage -> its number; an address may be used again
        self._count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs))
        self.values += [func, len(given)]
        read: set[int] = set()
        for x in given:
            if isinstance(x, torch.Tensor):
                read.add(x.untyped_storage()._cdata if x.layout is torch.strided else 0)
                self._note(x, False)
            else:
                self.values.append(x)
        out = func(*args, **kwargs)
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                new = x.layout is torch.strided and x.untyped_storage()._cdata not in read
                self._note(x, new)
        return out

    def _note(self, t: torch.Tensor, new: bool) -> None:
        """Note a tensor. new : its storage was made by this op, whatever had that address before."""
        self.values += [t.dtype, t.dim(), *t.shape]
        if t.layout is not torch.strided:
            self.values.append(t.layout)
            return
        address = t.untyped_storage()._cdata
        if new or address not in self._numbers:
            self._numbers[address] = self._count
            self._count += 1
        self.values.append(("storage", self._numbers[address]))
