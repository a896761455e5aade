"""How far a step's loss and gradients are from the plain step's, in words, for rows of steps that sum in another order.

Both steps start from the same random state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .cases import Case
from .comparators import Within


@dataclass(frozen=True)
class Difference:
    """Largest differences of a step from the plain one: of the loss relative to the loss, and of any entry of any gradient
    relative to the largest entry of all gradients. (A gradient that is zero but for rounding has no scale of its own.)"""

    loss: float
    gradients: float

    def __str__(self) -> str:
        return f"loss off by {self.loss:.1e}, gradients by {self.gradients:.1e} of the largest"


def difference(case: Case, within: Within) -> Difference:
    """Run the plain step and the step inside the context, on real tensors. Gradients that the model has stay."""
    loss, gradients = _step(case)
    with within():
        other, others = _step(case)
    if [g is None for g in gradients] != [g is None for g in others]:
        raise AssertionError("a parameter has a gradient in one of the two steps and none in the other")
    pairs = [(a, b) for a, b in zip(gradients, others, strict=True) if a is not None and b is not None]
    largest = max(float(a.abs().max()) for a, _ in pairs)
    off = max(float((a - b).abs().max()) for a, b in pairs)
    return Difference(abs(other - loss) / abs(loss), off / largest)


def _step(case: Case) -> tuple[float, list[torch.Tensor | None]]:
    """The loss of one step and the gradients of all parameters."""
    from ..torch.tensors.loss import default_loss

    found: list[float] = []

    def keep(model: Any, args: Any, result: Any) -> None:
        found.append(default_loss(result).item())

    parameters = list(case.model.parameters())
    before = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    hook = case.model.register_forward_hook(keep)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            case.once()
        return found[0], [p.grad for p in parameters]
    finally:
        hook.remove()
        for p, g in zip(parameters, before, strict=True):
            p.grad = g
