"""How matrix products and convolutions of float32 are rounded on a GPU, as the user has set it in either of torch's two ways.

PyTorch has older settings (`torch.set_float32_matmul_precision`, `allow_tf32`) and newer ones (`fp32_precision`). Where code
has used the newer ones, reading the older ones raises an error.
"""

from __future__ import annotations

from typing import Any

import torch

_EXACT = (
    "highest",
    "ieee",
    "none",
)  # float32 is not rounded; "none": nothing is set, and that is the default of products


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
