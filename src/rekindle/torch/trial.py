"""A plan made in the middle of a run is tried on the very call that it was made for, before that call trains by it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from . import tree
from .bound import Bound
from .call import Call
from .capture import disable_autocast


def differences(model: nn.Module, plain: Callable[..., Any], bound: Bound, call: Call) -> list[str]:
    """Where one planned step differs from one plain step, both on copies of the call's inputs; [] where nothing does, or where
    the plain step does not fit the device.

    Neither step touches gradients, or runs the hooks with which data-parallel training waits for them; buffers, attributes and
    random state are put back.
    """
    from .verify import same, state_kept

    def planned(tensors: list[torch.Tensor]) -> Any:
        return bound(model, replace(call, tensors=tensors))

    def eager(tensors: list[torch.Tensor]) -> Any:
        args, kwargs = call.form.arguments(tree.unflatten(tensors, call.spec))
        return plain(*args, **kwargs)

    outcomes = []
    with contextlib.suppress(torch.OutOfMemoryError):
        for forward in (planned, eager):
            with state_kept(model):
                outcomes.append(_step(model, forward, call.tensors))
    if len(outcomes) < 2:
        return []
    (ours, mine), (theirs, its) = outcomes
    found = [] if same(ours, theirs) else ["the loss"]
    wrong = [k for k in its if not same(mine[k], its[k])]
    return found + ([f"the gradients of {', '.join(wrong[:3])}"] if wrong else [])


def _step(
    model: nn.Module, forward: Callable[[list[torch.Tensor]], Any], given: list[torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
    """The loss, and gradients by name."""
    from .verify import default_loss

    copies = [t.detach().clone().requires_grad_(t.requires_grad) for t in given]
    leaves = {k: p for k, p in model.named_parameters() if p.requires_grad}
    leaves |= {f"input {i}": t for i, t in enumerate(copies) if t.requires_grad}
    loss = default_loss(forward(copies))
    with disable_autocast():
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return loss.detach(), dict(zip(leaves, gradients, strict=True))
