"""Watches the ops of a plain step: which ran, on which tensors, with which shapes and constants."""

from __future__ import annotations

from typing import Any

import torch

from ..capture.private import StorageWeakRef, TorchDispatchMode, tree_leaves


class Witness(TorchDispatchMode):
    """A dispatch mode that notes every op of one step. Two steps with equal `values` did the same.

    values : one row of operators, numbers of storages in the order in which they were first seen, shapes, dtypes and constants.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []
        # Address of a storage -> (its number, a weak reference, which keeps the address from use, but not the bytes).
        self._numbers: dict[int, tuple[int, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs))
        self.values += [func, len(given)]
        for x in given:
            self._note(x)
        out = func(*args, **kwargs)
        for x in tree_leaves(out):
            self._note(x)
        return out

    def _note(self, x: Any) -> None:
        if not isinstance(x, torch.Tensor):
            self.values.append(x)
        elif x.layout is torch.strided:
            self.values += [("tensor", x.dtype, x.dim(), self._number(x.untyped_storage())), *x.shape]
        else:
            self.values += [("tensor", x.dtype, x.dim(), x.layout), *x.shape]

    def _number(self, storage: Any) -> int:
        address = storage._cdata
        if address not in self._numbers:
            self._numbers[address] = len(self._numbers), StorageWeakRef(storage)
        return self._numbers[address][0]
