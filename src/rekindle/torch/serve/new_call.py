"""A call for which a module has no plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ...ask import TraceOptions
from ..situation.module_call import Key, ModuleCall
from ..situation.numbers import Place
from ..tensors.sharded import own_class
from ..trace import Trace, trace_call
from .lengths import covers


@dataclass(frozen=True)
class NewCall:
    """A call for which a module has no plan.

    model, plain : the module and its own forward.
    call, key : the arguments, and the key that tells calls of one kind from others.
    began : when work on the call began, in seconds of `time.perf_counter`.
    """

    model: nn.Module
    plain: Callable[..., Any]
    call: ModuleCall
    key: Key
    began: float

    @property
    def words(self) -> str:
        """The call as the beginning of a message."""
        given = f"with inputs {self.call.shapes}" if self.call.tensors else "without tensors"
        return f"{own_class(self.model).__name__} was called {given}"

    @property
    def trains(self) -> bool:
        """Whether a parameter or an argument requires grad."""
        return any(p.requires_grad for p in self.model.parameters()) or any(t.requires_grad for t in self.call.tensors)

    @property
    def unplanned(self) -> tuple[str, str] | None:
        """Why no call like this can be planned, as part of a message, and the kind of the reason; None: it may be."""
        if stands_in := next((n for n, p in self.model.named_parameters() if not isinstance(p, nn.Parameter)), None):
            return (
                f" with a tensor in place of its parameter {stands_in!r}, as torch.func.functional_call does",
                "stand-in",
            )
        once = self.call.used_up
        return (
            (f"; {', '.join(once)} can be read only once, and planning would read it: pass a list", "")
            if once
            else None
        )

    @property
    def took(self) -> float:
        """Seconds since work on the call began."""
        return time.perf_counter() - self.began

    def trace(
        self,
        how: TraceOptions,
        *,
        report: Callable[[str], None] | None,
        by_values: bool = True,
        inputs: Mapping[Place, Any] | None = None,
    ) -> Trace:
        """The captured call. Arguments as `trace_call`; report : called with lines of progress. A call without a result that
        `how.unused` names is captured all the same: forward may return it in some calls only.

        No op is timed: a training loop waits. Costs are modelled, by what was timed before. A trace with `inputs` has no costs.
        """
        args, kwargs = self.call.arguments
        how = replace(how, inside=self.call.inside)
        made = trace_call(
            self.model, args, kwargs, how, forward=self.plain, progress=report, by_values=by_values, inputs=inputs or {}
        )
        return made if inputs else made.costed(how.target, report, measure=False)


def fits_plain(new: NewCall, budget: int | None, plain: Iterable[tuple[Key, int | None]]) -> bool:
    """Whether the call's plain step takes no more than the budget in bytes, or than its GPU has, as far as larger calls tell.
    plain : keys of planned calls, and the peaks of their plain steps."""
    on = next((t.device for t in (*new.call.tensors, *new.model.parameters()) if t.is_cuda), None)
    limit = budget or on and torch.cuda.get_device_properties(on).total_memory
    return not limit or any(peak is not None and peak <= limit for key, peak in plain if covers(key, new.key))
