"""Runs GPU dropout on fake CPU tensors.

`rekindle bench` measures the suites modern and deep on fake CPU tensors but reports them for a GPU, whose dropout saves less.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def fused_dropout() -> Iterator[None]:
    """Inside the context, `aten::dropout` on the CPU runs the fused op of GPUs, which saves one byte per element for its mask.

    Eager PyTorch has no fused dropout on the CPU and saves the mask as floats; captured graphs always use the fused op. Without
    this, plans would be compared with a plain step that holds more memory than on any GPU.
    """

    def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if not train or p == 0:
            return x
        return torch.ops.aten.native_dropout.default(x, p, True)[0]

    # the override ends with the context
    lib = torch.library.Library("aten", "IMPL")
    lib.impl("dropout", dropout, "AutogradCPU")
    try:
        yield
    finally:
        lib._destroy()
