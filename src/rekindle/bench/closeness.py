"""How far a step's loss and gradients are from the plain step's, in words, for rows of steps that sum in another order.

Both steps start from the same random state. A case without data has a small copy of its model measured in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .cases import Case

if TYPE_CHECKING:
    from ..model.plan import Plan
    from ..torch.trace import Trace

Within = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Difference:
    """Largest differences of a step from the plain one: of the loss relative to the loss, and of any entry of any gradient
    relative to the largest entry of all gradients. (A gradient that is zero but for rounding has no scale of its own.)"""

    loss: float
    gradients: float

    def __str__(self) -> str:
        return f"loss off by {self.loss:.1e}, gradients by {self.gradients:.1e} of the largest"


def beside_plain(method: str, case: Case, within: Within) -> str:
    """The note of a comparator's row: how far its step is from the plain one; "" for a case without data that has no copy."""
    if not case.fake:
        return f"beside the plain step: {difference(case, within)}"
    if case.twin is None:
        return ""
    from .comparators import comparator, needs_trace

    twin = case.twin()
    trace, once = _captured(twin) if needs_trace(method) else (None, None)
    return f"a small copy beside its plain step: {difference(twin, lambda: comparator(method, twin, trace, once))}"


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
    from ..torch.capture.loss import default_loss

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


def _captured(case: Case) -> tuple[Trace, Plan]:
    """The captured step without costs, and a plan that runs each op once."""
    from .. import api
    from ..torch.trace import TraceOptions, call_arguments, trace_call

    args, kwargs = call_arguments(case.sample)
    traced = trace_call(case.model, args, kwargs, TraceOptions(unused=case.unused), inputs={})
    return traced, api.plan(traced, minimize="memory", solver="none", cost="flops", cache=False, progress=False)
