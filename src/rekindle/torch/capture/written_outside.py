"""Tensors that forward writes to and that stand in no module: in globals, closures, classes, dicts, objects of the user's.

Torch traces such a tensor as a constant, to which nothing can be written. So a buffer of the model stands for it while the
step is captured, and planned steps write to the tensor itself, as they do to buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..private import pytree

PREFIX = "_rekindle_outside_"  # of the names of such buffers


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
