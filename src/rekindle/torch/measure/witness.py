"""Watches a plain step: which ops ran, on which tensors, with which shapes and constants, and which attributes forward read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.fx.node import map_aggregate

from ..lowering.resize import content
from ..private import StorageWeakRef, TorchDispatchMode
from ..situation.guards import Reads


class Witness(TorchDispatchMode):
    """A dispatch mode that notes every op of one step. Two steps with equal `values` did the same.

    values : one row of operators, numbers of storages in the order in which they were first seen, shapes, dtypes and constants.
        Tensors that neither the step made nor the module or the caller gave are constants too, with their content.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []
        self._reads = Reads()
        # Address of a storage -> (its number, a weak reference, which keeps the address from use, but not the bytes).
        self._numbers: dict[int, tuple[int, Any]] = {}

    def expect(self, given: Iterable[torch.Tensor]) -> None:
        """Note the tensors that the step is given: inputs, parameters, buffers."""
        for t in given:
            if t.layout is torch.strided:
                self._number(t.untyped_storage())

    def of_forward(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """`forward`, with the attributes noted that it reads."""
        return self._reads.recorded(forward)

    def read_only(self, model: nn.Module, names: Any) -> bool:
        """Whether forward read no attributes but these, which are named as in `Expected.reads`."""
        if names is None:
            return True
        found = self._reads.by_path(model)
        return all("*" in names.get(path, ()) or read <= names.get(path, frozenset()) for path, read in found.items())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given: list[Any] = []
        map_aggregate((args, kwargs), given.append)
        self.values += [func, len(given)]
        for x in given:
            if self._note(x):
                self.values.append(content(x))
        out = func(*args, **kwargs)
        map_aggregate(out, self._note)
        return out

    def _note(self, x: Any) -> bool:
        """Note an argument or a result. Returns whether it is a tensor of a storage that was not seen before."""
        if not isinstance(x, torch.Tensor):
            self.values.append(x)
            return False
        before, strided = len(self._numbers), x.layout is torch.strided
        number = self._number(x.untyped_storage()) if strided else x.layout
        self.values += [("tensor", x.dtype, x.dim(), number), *x.shape]
        return not strided or len(self._numbers) > before

    def _number(self, storage: Any) -> int:
        address = storage._cdata
        if address not in self._numbers:
            self._numbers[address] = len(self._numbers), StorageWeakRef(storage)
        return self._numbers[address][0]
