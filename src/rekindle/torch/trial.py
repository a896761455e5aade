"""A plan made in the middle of a run is tried on the very call that it was made for, before that call trains by it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from . import tree
from .attributes import Attributes, plain_tensors
from .bound import Bound
from .call import Call
from .capture import disable_autocast
from .side_effects import SideEffects


def differences(model: nn.Module, plain: Callable[..., Any], bound: Bound, call: Call) -> list[str]:
    """Where one planned step differs from one plain step, both on copies of the call's inputs; [] where nothing does, or where
    the plain step does not fit the device.

    Neither step touches gradients, or runs the hooks with which data-parallel training waits for them; buffers, attributes and
    random state are put back.
    """
    from .verify import same

    def planned(tensors: list[torch.Tensor]) -> Any:
        return bound(model, replace(call, tensors=tensors))

    def eager(tensors: list[torch.Tensor]) -> Any:
        args, kwargs = call.form.arguments(tree.unflatten(tensors, call.spec))
        return plain(*args, **kwargs)

    outcomes = []
    with contextlib.suppress(torch.OutOfMemoryError):
        for forward in (planned, eager):
            with SideEffects(model), as_before(model):  # hooks that count are called once more than the loop calls them
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

    copies = [_copy(t) for t in given]
    leaves: dict[str, torch.Tensor] = {k: p for k, p in model.named_parameters() if p.requires_grad}
    leaves |= {f"input {i}": t for i, t in enumerate(copies) if t.requires_grad}
    loss = default_loss(forward(copies))
    with disable_autocast():
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return loss.detach(), dict(zip(leaves, gradients, strict=True))


def _copy(t: torch.Tensor) -> torch.Tensor:
    copied = t.detach().clone()
    return (
        nn.Parameter(copied, t.requires_grad) if isinstance(t, nn.Parameter) else copied.requires_grad_(t.requires_grad)
    )


@contextlib.contextmanager
def after_first_call(model: nn.Module, call: Call, forward: Callable[..., Any]) -> Iterator[None]:
    """The module as its first plain call leaves it (position indices and states that forward makes then); afterwards it is as
    it was."""
    copies = [t.detach().clone().requires_grad_(t.requires_grad) for t in call.tensors]
    args, kwargs = call.form.arguments(tree.unflatten(copies, call.spec))
    with as_before(model):
        forward(*args, **kwargs)
        yield


@contextlib.contextmanager
def as_before(model: nn.Module) -> Iterator[None]:
    """Buffers, attributes and random state as before, afterwards."""
    attributes = Attributes(model)
    carried = [*model.buffers(), *(t for *_, t in plain_tensors(model))]
    kept = [(b, b.detach().clone()) for b in carried]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            attributes.restore()
            with torch.no_grad():
                for b, old in kept:
                    b.copy_(old)
