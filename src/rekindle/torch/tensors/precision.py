"""Deterministic kernels, and how a GPU rounds float32 in matrix products and convolutions.

For rounding, PyTorch has older settings (`torch.set_float32_matmul_precision`, `allow_tf32`) and newer ones (`fp32_precision`).
Where code has used the newer ones, reading the older ones raises an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

# Settings by which float32 is not rounded; "none": nothing is set, and that is the default of products.
_EXACT = ("highest", "ieee", "none")


def of_products() -> str:
    """The setting for matrix products: "highest", "high" or "medium"; of the newer settings "tf32", "ieee" or "none"."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return str(torch.backends.cuda.matmul.fp32_precision)


def of_convolutions() -> str:
    """The setting for convolutions: "tf32", torch's default, "ieee" or "none"."""
    cudnn: Any = torch.backends.cudnn
    return str(cudnn.conv.fp32_precision)


def rounds(setting: str) -> bool:
    """Whether float32 operands are rounded to TF32 or less."""
    return setting not in _EXACT


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Use deterministic kernels inside, if PyTorch has them."""
    on, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(on, warn_only=warn)
