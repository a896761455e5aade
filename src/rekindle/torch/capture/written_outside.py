"""Tensors that forward writes to and that stand in no module: in globals, closures, classes, dicts, objects of the user's.

Torch traces such a tensor as a constant, to which nothing can be written. So a buffer of the model stands for it while the step is
captured, and planned steps write to the tensor itself, as they do to buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..private import FakeTensorMode, TorchDispatchMode, pytree
from ..tensors.op_tensors import storage_of, written_by

PREFIX = "_rekindle_outside_"  # of the names of such buffers


class WrittenOutside(TorchDispatchMode):
    """Finds the tensors from outside to which a forward on the fake tensors of `mode` writes."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self._mode, self._seen, self._written = mode, dict[int, tuple[torch.Tensor, Any]](), list[Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [t for t in pytree.tree_leaves((args, kwargs or {})) if isinstance(t, torch.Tensor)]
        if func is not torch.ops.aten.lift_fresh.default:  # which takes a tensor that forward makes of numbers
            for t in given:
                if type(t) in (torch.Tensor, torch.nn.Parameter):  # not fake, nor left by another trace
                    self._seen.setdefault(id(t), (t, self._mode.from_tensor(t)))
        self._written += written_by(func, args, kwargs or {})  # kept alive: a storage is known by its address
        return func(*args, **(kwargs or {}))

    def found(self) -> list[torch.Tensor]:
        """The tensors, in the order in which forward came to them; those that require grad cannot be inputs of a step."""
        real = {id(t) for t in self._written}
        memory = {s._cdata for t in self._written if (s := storage_of(t)) is not None}
        return [
            t for t, twin in self._seen.values()
            if not t.requires_grad and (id(t) in real or (s := storage_of(twin)) is not None and s._cdata in memory)
        ]  # fmt: skip


class InTheirPlace(TorchFunctionMode):
    """Inside, operators work on stand-ins. outside : id of a tensor -> (the tensor, its stand-in)."""

    def __init__(self, outside: Mapping[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._outside = outside
        self._back = {id(stand): t for t, stand in outside.values()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def stand(x: Any) -> Any:
            return self._outside[id(x)][1] if id(x) in self._outside else x

        args, kwargs = pytree.tree_map(stand, (args, kwargs or {}))
        out = func(*args, **kwargs)
        return self._back.get(id(out), out)  # `d["n"] += 1` puts the result into the dict
