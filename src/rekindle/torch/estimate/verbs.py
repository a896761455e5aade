"""`rekindle.estimate`: the memory of one plain training step of a model, without a GPU and without its weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from ...arguments import choice
from ...ask import GRADIENTS
from ...errors import UsageError
from ...estimates.estimate import (
    CPU_BAND,
    Estimate,
    ModuleFigures,
    as_it_is,
    framework_bytes,
    products_workspace,
    rounded_on_gpu,
)
from ...printed import value
from ...saying.progress import Progress, announce, telling
from .. import accept
from ..costs import devices
from ..costs.resident import innermost, state_bytes
from .eager_step import LossOf, StepOptions, SteppedTwin, step_of_twin
from .kernel_memory import KernelMemory
from .watch import FORWARD, OPTIMIZER, Moment

HEAVIEST = 10  # modules that an estimate lists


def estimate(
    model: nn.Module,
    sample: Any,
    optimizer: torch.optim.Optimizer | type | str | None = "adamw",
    *,
    loss: LossOf | None = None,
    gradients: str = "fresh",
    target: str | None = None,
    progress: Progress = None,
) -> Estimate:
    """The memory of one plain training step, before anything is run: no GPU, no weights in memory, no plan.

    The step is forward, loss, backward and `optimizer.step()`, the second or a later one, with its results held. Eager's own
    code runs on fake tensors. On the CPU, the few kernels that could set the peak run once on made-up tensors, because how much
    memory they take depends on the machine.

    Parameters
    ----------
    model, sample : as in `rekindle.trace`; real, on the meta device, or fake. They stay as they are.
    optimizer : an optimizer, its class or a name such as "adamw"; None: no optimizer.
    loss : function from the model's result to a scalar; None: the result's own loss, or the sum of all that requires grad.
    gradients : "fresh" (or "none"): they are set to None before each step, as `optimizer.zero_grad()` does; "kept": they stay,
        and each step adds to them; "consumed": an optimizer inside backward uses each one up. Its own temporary memory is not
        counted then.
    target : name of a GPU that the step is for; None: the device of the model, where meta counts as the CPU. On a GPU,
        attention, dropout and the optimizer run by its kernels, and rounding and the framework's overhead count.
    progress : as in `rekindle.plan`.

    Raises
    ------
    TraceError : the step cannot be run on fake tensors; the message names the user's line.
    UsageError : an argument makes no sense, or the model cannot be trained as it is.
    """
    accept.process("estimate")
    return EstimateRequest.of_user(model, optimizer, target, loss, gradients, progress).of(sample)


@dataclass(frozen=True)
class EstimateRequest:
    """All of an estimate but its sample. The kernels that ran for one sample serve the others."""

    model: nn.Module
    optimizer: Any
    target: str | None
    loss: LossOf | None = None
    gradients: str = "fresh"
    progress: Progress = None

    @classmethod
    def of_user(
        cls,
        model: nn.Module,
        optimizer: Any,
        target: str | None,
        loss: LossOf | None = None,
        gradients: str = "fresh",
        progress: Progress = None,
    ) -> EstimateRequest:
        """A user's request, checked.

        Raises
        ------
        UsageError : an argument makes no sense.
        """
        choice("gradients", gradients, (*GRADIENTS, "none"))
        gradients = "fresh" if gradients == "none" else gradients
        if loss is not None and not callable(loss):
            raise UsageError(
                f"loss={value(loss)} cannot be called; give a function from the model's result to a scalar"
            )
        accept.module(model)
        accept.optimizer(optimizer)
        return cls(model, optimizer, target, loss, gradients, progress)

    @cached_property
    def device(self) -> devices.Device:
        """The device that the step is for.

        Raises
        ------
        UsageError : `target` is unknown.
        """
        if self.target is not None:
            return devices.get(self.target)
        p = next(self.model.parameters(), None)
        return devices.closest(torch.device("cpu") if p is None else p.device)

    @cached_property
    def memory(self) -> KernelMemory:
        """The memory of kernels."""
        return KernelMemory(counts=self.device.capability is None)

    def of(self, sample: Any) -> Estimate:
        """The estimate for a sample."""
        call, begin = accept.sample(sample), time.monotonic()
        rounded = as_it_is if self.device.capability is None else rounded_on_gpu
        options = StepOptions(self.optimizer, self.loss, self.gradients, self.device, rounded)
        self.memory.again()
        with accept.alone("estimate", self.model, self.progress), telling(self.progress):
            announce(self.progress, f"stepping a copy of {type(self.model).__name__} made of fake tensors")
            step = step_of_twin(self.model, call, options, self.memory)
            announce(self.progress, "running the kernels that could set the peak")
            return _estimate(self.model, step, options, self.memory, begin)


def _estimate(model: nn.Module, step: SteppedTwin, o: StepOptions, memory: KernelMemory, begin: float) -> Estimate:
    top, at = _peak(step.moments, memory)
    phases = _phases(step.moments, memory, top) | {at.phase: top}
    state = 0 if o.optimizer is None else state_bytes(o.optimizer, model)
    kept = step.gradient_bytes if o.keeps_gradients else 0
    older = step.parameter_bytes + step.buffer_bytes + step.input_bytes + state + kept
    capability = o.device.capability
    products = products_workspace(capability)
    always = older + step.resident_rounding + products + framework_bytes(capability)
    temporary = at.live - at.rounding - _before_optimizer(step.moments) if at.phase == OPTIMIZER else 0
    gradients = kept if o.keeps_gradients else at.gradients
    fixed = older - kept + step.gradient_bytes + step.resident_rounding + products + framework_bytes(capability)
    floor, floor_op = _floor(step.moments, fixed, always)
    notes = [] if not step.refused else [
        f"not counted: temporary memory of the optimizer's step, which cannot be run on fake tensors ({step.refused})"
    ]  # fmt: skip
    if capability is not None:
        notes.append("not counted: workspaces of convolutions and fragmentation; the framework's part is a guess")
    return Estimate(
        model=type(model).__name__,
        peak_bytes=always + top,
        parameter_bytes=step.parameter_bytes,
        buffer_bytes=step.buffer_bytes,
        gradient_bytes=gradients,
        optimizer_bytes=state,
        input_bytes=step.input_bytes,
        activation_bytes=at.live - at.rounding - (0 if o.keeps_gradients else at.gradients) - temporary,
        workspace_bytes=top - at.live + temporary + products,
        rounding_bytes=step.resident_rounding + at.rounding,
        overhead_bytes=framework_bytes(capability),
        phase=at.phase,
        op=at.words,
        phases=tuple((p, always + size) for p, size in phases.items()),
        floor_bytes=floor,
        floor_op=floor_op,
        modules=_heaviest(type(model).__name__, step),
        seconds=sum(m.seconds for m in step.moments),
        device=o.device.name,
        optimizer=_named(o.optimizer),
        gradients=o.gradients,
        band=CPU_BAND if capability is None else None,
        notes=tuple(notes),
        took_seconds=time.monotonic() - begin,
    )


def _peak(moments: Sequence[Moment], memory: KernelMemory) -> tuple[int, Moment]:
    """(the most bytes that the step makes, when).

    Kernels are run in the order of what they are likely to reach, until no other one can reach more.
    """
    best = max(((m.live, m) for m in moments), key=lambda row: row[0])
    could = [m for m in moments if m.call is not None and m.live + m.call.most > best[0]]
    ordered = sorted(((m.live + memory.likely(m.call), m) for m in could if m.call), key=lambda row: -row[0])
    for likely, m in ordered:
        if likely <= best[0] or m.call is None:
            break
        size = m.live + memory.of(m.call)
        if size > best[0]:
            best = size, m
    return best


def _phases(moments: Sequence[Moment], memory: KernelMemory, top: int) -> dict[str, int]:
    """The most bytes that the step makes in each phase. No more kernels are run for it."""
    found: dict[str, int] = {}
    for m in moments:
        size = min(top, m.live + (memory.guess(m.call) if m.call is not None else 0))
        found[m.phase] = max(found.get(m.phase, 0), size)
    return found


def _before_optimizer(moments: Sequence[Moment]) -> int:
    """Bytes that live when the optimizer begins, rounding left out: results and gradients that backward made."""
    return min((m.live - m.rounding for m in moments if m.phase == OPTIMIZER), default=0)


def _floor(moments: Sequence[Moment], fixed: int, always: int) -> tuple[int, str]:
    """(about the least peak of any plan, the operator that sets it). fixed : bytes held during the whole step, with all
    gradients. always : the same without gradients, unless they are kept."""
    widest = max((m for m in moments if m.phase != OPTIMIZER), key=lambda m: m.working)
    floor = fixed + widest.working, widest.words
    last = max((m for m in moments if m.phase == OPTIMIZER), key=lambda m: m.live, default=None)
    return floor if last is None else max(floor, (always + last.live, f"the optimizer's step, {last.words}"))


def _heaviest(model: str, step: SteppedTwin) -> tuple[ModuleFigures, ...]:
    seconds: dict[str, float] = {}
    for m in step.moments:
        if m.phase == FORWARD:
            seconds[m.module] = seconds.get(m.module, 0.0) + m.seconds
    rows = sorted(step.held.items(), key=lambda row: (-row[1], row[0]))[:HEAVIEST]
    return tuple(ModuleFigures(path or model, size, seconds.get(path, 0.0)) for path, size in rows if size)


def _named(optimizer: Any) -> str:
    if optimizer is None:
        return "none"
    if isinstance(optimizer, str):
        return optimizer.strip().lower()
    kind: Callable[..., Any] = optimizer if isinstance(optimizer, type) else type(innermost(optimizer))
    return kind.__name__
