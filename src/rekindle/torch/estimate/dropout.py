"""Dropout as a GPU computes it: one fused kernel that saves its mask as bytes. The CPU's saves a mask of floats."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class DropoutOfGpu(TorchFunctionMode):
    """A mode in which dropout of tensors on the CPU runs as the GPU's kernel."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout or func is torch.dropout:
            x, p, train = _arguments(*args, **kwargs)
            if train and 0 < p < 1:
                return torch.native_dropout(x, p, True)[0]
        return func(*args, **kwargs)


def _arguments(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool = True) -> Any:
    return input, p, training and train and not inplace
