"""Bytes that a training loop holds during the whole step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from .tensors.op_tensors import dense_parts
from .tensors.sharded import local


def resident_bytes(
    model: nn.Module, tensors: Iterable[torch.Tensor], more: Iterable[torch.Tensor] = (), gradients: str = "kept"
) -> int:
    """Bytes held during the whole step: parameters, buffers, inputs, and kept gradients."""
    seen: dict[Any, int] = {}
    held = [*model.parameters(), *model.buffers(), *tensors, *more]
    for t in [part for whole in held for part in dense_parts(local(whole))]:
        s = t.untyped_storage()
        seen[s._cdata] = s.nbytes()
    return sum(seen.values()) + (gradient_bytes(model) if gradients == "kept" else 0)


def gradient_bytes(model: nn.Module) -> int:
    """Bytes of a gradient for every trained parameter."""
    trained = [local(p) for p in model.parameters() if p.requires_grad]
    return sum(p.numel() * p.element_size() for p in trained)
