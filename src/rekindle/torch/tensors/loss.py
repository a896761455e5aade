"""Finds the loss among the results of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...errors import UsageError
from . import tree


def losses(tensors: Sequence[torch.Tensor], places: Sequence[str] | Mapping[int, str]) -> list[int]:
    """Indices of the results that are losses: the only scalar under a key `loss`; or, where a scalar comes first, all scalars,
    which the loop may add up (reconstruction and divergence, say). Empty: no result is known to be a loss."""
    scalars = [i for i, t in enumerate(tensors) if t.numel() == 1 and t.requires_grad]
    called = [i for i in scalars if places[i].endswith("['loss']")]
    if len(called) == 1:
        return called
    return scalars if scalars[:1] == [0] and places[0] in ("output", "output[0]") else []


def default_loss(result: Any, arguments: Any = (), known: Sequence[torch.Tensor] = ()) -> torch.Tensor:
    """The sum of the losses in a result (see `losses`), or of all its tensors that require grad; plus the sum of such tensors
    that forward put into the arguments.

    known : tensors that do not count among those in the arguments.

    Raises
    ------
    UsageError : no tensor of the result requires grad.
    """
    tensors, spec = tree.flatten(result, opaque_ok=True)
    found = losses(tensors, tree.paths(spec))
    able = [tensors[i] for i in found] or [t for t in tensors if t.requires_grad]
    able += [t for t in tree.put_into(arguments, [*known, *tensors]) if t.requires_grad]
    if not able:
        raise UsageError("no result of the model requires grad, so there is no step to verify")
    total = _sum(able[0])
    for t in able[1:]:
        total = total + _sum(t).to(total.device)
    return total


def _sum(t: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor as a real number, from which backward can start: a loss itself, as a training loop takes it."""
    if t.ndim == 0 and not t.is_complex():
        return t
    return torch.view_as_real(t.resolve_conj()).sum() if t.is_complex() else t.sum()
