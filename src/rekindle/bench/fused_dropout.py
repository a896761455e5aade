"""Dropout as GPUs have it, on fake CPU tensors too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def fused_dropout() -> Iterator[None]:
    """Meanwhile `aten::dropout` on the CPU is the one fused op that GPUs run, which keeps a byte per element for its mask.

    Eager has no fused dropout on the CPU and keeps the mask as floats; captured graphs always have the fused one. Without
    this, plans would be compared with a plain step that holds more than any GPU's.
    """

    def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if not train or p == 0:
            return x
        return torch.ops.aten.native_dropout.default(x, p, True)[0]

    # as an override that ends with the context
    lib = torch.library.Library("aten", "IMPL")
    lib.impl("dropout", dropout, "AutogradCPU")
    try:
        yield
    finally:
        lib._destroy()
