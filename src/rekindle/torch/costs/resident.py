"""Bytes that a training loop holds during the whole step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..capture.captured import Captured
from ..operators.node_tensors import storage_bytes
from ..tensors.op_tensors import dense_parts
from ..tensors.sharded import local
from ..undo.attributes import plain_tensors


def resident_bytes(model: nn.Module, tensors: Iterable[torch.Tensor], gradients: str = "kept") -> int:
    """Bytes held during the whole step: parameters, buffers, `tensors` (the inputs and others), and kept gradients."""
    seen: dict[Any, int] = {}
    held = [*model.parameters(), *model.buffers(), *tensors]
    for t in [part for whole in held for part in dense_parts(local(whole))]:
        s = t.untyped_storage()
        seen[s._cdata] = s.nbytes()
    return sum(seen.values()) + (gradient_bytes(model) if gradients == "kept" else 0)


def resident_beside(model: nn.Module, tensors: Iterable[torch.Tensor], step: Captured, gradients: str) -> int:
    """Bytes held during the whole of a captured step: `resident_bytes` with the tensors in the module's attributes, those that
    are constants of the step, and the bytes by which attributes take more once forward has set them."""
    attributes = {name: t for name, _, _, t in plain_tensors(model)}
    before = dict(model.named_buffers()) | attributes
    new = {k: step.outputs[a.output].meta["val"] for k, a in step.assigned.items() if a.output is not None}
    newly = sum(max(0, storage_bytes(t) - (storage_bytes(before[k]) if k in before else 0)) for k, t in new.items())
    held = [*tensors, *step.constants.values(), *attributes.values()]
    return resident_bytes(model, held, gradients) + newly


def gradient_bytes(model: nn.Module) -> int:
    """Bytes of a gradient for every trained parameter."""
    trained = [local(p) for p in model.parameters() if p.requires_grad]
    return sum(p.numel() * p.element_size() for p in trained)
