"""One real step each way: the same numbers, and the peak that was promised."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..accept import plan as accept_plan
from ..errors import UsageError
from ..plan import Plan
from . import accept, tree
from .attributes import Attributes, plain_tensors
from .capture import disable_autocast
from .flops import FlopCount
from .measure import allocator_peak, storage_peak
from .planned import PlannedForward, planned_forward
from .trace import call_arguments, plain_forward

LossOf = Callable[[Any], torch.Tensor]


@dataclass(frozen=True)
class Check:
    """What `verify` found.

    loss_equal, gradients_equal, buffers_equal, rng_equal : bitwise equality of the planned step with the plain one;
        None where it could not be told (fake tensors, or the plain step does not fit the device).
    predicted_peak_bytes, measured_peak_bytes, plain_peak_bytes : activation peaks: bytes above what is held before the
        step and stays (parameters, buffers, inputs, a gradient for every trained parameter); the plain one is measured.
    plain_seconds, planned_seconds : one step each, measured with the instruments on.
    flops_overhead : extra FLOPs of the executed step over the plain one, counted; None where it was not asked for.
    differences : what differs, in words.
    """

    loss_equal: bool | None
    gradients_equal: bool | None
    buffers_equal: bool | None
    rng_equal: bool | None
    predicted_peak_bytes: int
    measured_peak_bytes: int
    plain_peak_bytes: int | None
    plain_seconds: float | None
    planned_seconds: float
    flops_overhead: float | None
    differences: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing differs."""
        return not self.differences

    @property
    def peak_error(self) -> float:
        """(measured - predicted) / predicted activation peak."""
        return self.measured_peak_bytes / self.predicted_peak_bytes - 1 if self.predicted_peak_bytes else 0.0

    def __str__(self) -> str:
        from ..budget import format_bytes

        word = {True: "bitwise equal", False: "DIFFERS", None: "not compared"}
        return "\n".join(
            [f"{k:<10} {word[x]}" for k, x in (("loss", self.loss_equal), ("gradients", self.gradients_equal),
                                               ("buffers", self.buffers_equal), ("RNG state", self.rng_equal))]
            + [f"peak       {format_bytes(self.measured_peak_bytes)} measured, "
               f"{format_bytes(self.predicted_peak_bytes)} predicted ({self.peak_error:+.2%})"]
            + self.differences
        )  # fmt: skip


@dataclass
class _Outcome:
    loss: torch.Tensor
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]
    rng: list[torch.Tensor]
    peak: int
    seconds: float


def default_loss(result: Any) -> torch.Tensor:
    """The loss a result carries (its `loss`, or a scalar that comes first), else the sum of all that requires grad."""
    tensors, spec = tree.flatten(result, opaque_ok=True)
    places = tree.paths(spec)
    able = [i for i, t in enumerate(tensors) if t.requires_grad]
    scalars = [i for i in able if tensors[i].numel() == 1]
    called = [i for i in scalars if places[i].endswith("['loss']")]
    if len(called) == 1:
        return _total(tensors[called[0]])
    if scalars[:1] == [0] and places[0] in ("output", "output[0]"):
        return _total(tensors[0])
    if not able:
        raise UsageError("no result of the model requires grad, so there is no step to verify")
    total = _total(tensors[able[0]])
    for i in able[1:]:
        total = total + _total(tensors[i])
    return total


def _total(t: torch.Tensor) -> torch.Tensor:
    """The sum, a real number: of complex ones the sum of both parts."""
    return torch.view_as_real(t.resolve_conj()).sum() if t.is_complex() else t.sum()


def verify(
    model: nn.Module,
    sample: Any,
    plan: Plan | None = None,
    *,
    loss: LossOf | None = None,
    count_flops: bool = False,
) -> Check:
    """Run one step plain and one planned, from the same parameters, buffers and RNG state, and compare them bit by bit.

    The module is left as it was: gradients, buffers and RNG state are put back. Algorithms are deterministic meanwhile.

    Parameters
    ----------
    plan : the plan to check; None: the one the module has (see `apply`).
    loss : result of the model -> scalar; default `default_loss`.
    count_flops : run one more step each way and count its FLOPs.

    Raises
    ------
    UsageError : there is no plan, or no result that requires grad.
    PlanMismatch : the sample is not what the plan is for.
    """
    accept.process("verify")
    accept.module(model)
    if plan is not None:
        accept_plan(plan)
    if loss is not None and not callable(loss):
        raise UsageError(f"loss={loss!r} cannot be called; give a function from the model's result to a scalar")
    planned = planned_forward(model)
    if plan is not None:
        planned = PlannedForward(model, plan, "error", lambda trace, options: plan, check=False)
    if planned is None:
        raise UsageError("the model has no plan; give one, or call rekindle.apply(model, plan) first")
    args, kwargs = call_arguments(sample)
    accept.measurable(model, args, kwargs)
    tensors = tree.flatten((args, kwargs))[0]
    plain = plain_forward(model)
    fake = torch._guards.detect_fake_mode([*model.parameters(), *tensors])

    def step() -> torch.Tensor:
        value = (loss or default_loss)(model(*args, **kwargs))
        with disable_autocast():  # backward belongs outside of it, also where the caller compares inside
            value.backward()  # type: ignore[no-untyped-call]
        return value.detach()

    with accept.gradients_on(), _put_back(model, tensors), fake or _deterministic():
        ours = _run(model, tensors, planned, step, fake is not None)
        theirs = None
        with contextlib.suppress(torch.OutOfMemoryError):  # that it does not fit plain may be why there is a plan
            theirs = _run(model, tensors, plain, step, fake is not None)
        extra = None
        if count_flops and theirs is not None:
            counts = [_flops(model, f, step, fake is not None) for f in (planned, plain)]
            extra = counts[0] / counts[1] - 1 if counts[1] else None
    used = planned.last.plan if planned.last is not None else planned.plan
    return _compare(ours, theirs, used, fake is not None, extra)


def _flops(model: nn.Module, forward: Callable[..., Any], step: Callable[[], torch.Tensor], fake: bool) -> int:
    """FLOPs of one more step, apart from those that are compared: counting gets between the model and its kernels."""
    for p in model.parameters():
        p.grad = None  # those of the compared steps are not to be added to
    with state_kept(model, fake), _forward(model, forward), FlopCount() as count:
        step()
    return count.total


def _run(
    model: nn.Module,
    tensors: list[torch.Tensor],
    forward: Callable[..., Any],
    step: Callable[[], torch.Tensor],
    fake: bool,
) -> _Outcome:
    """One step with this forward, from the model's present state, which is put back."""
    with state_kept(model, fake), _forward(model, forward):
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        held: list[torch.Tensor] = []
        begin = time.perf_counter()
        if fake:
            known = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
            peak = storage_peak(lambda: held.append(step()), known).peak_bytes
        else:
            device = next((t.device for t in [*model.parameters(), *tensors]), torch.device("cpu"))
            peak = allocator_peak(lambda: held.append(step()), device).peak_bytes
        return _Outcome(
            loss=held[0],
            gradients={k: p.grad for k, p in model.named_parameters()},
            buffers={k: b.detach().clone() for k, b in _carried(model).items()},
            rng=[] if fake else _rng(model),
            peak=peak,
            seconds=time.perf_counter() - begin,
        )


def _compare(ours: _Outcome, theirs: _Outcome | None, plan: Plan, fake: bool, flops_overhead: float | None) -> Check:
    found: list[str] = []
    equal: dict[str, bool | None] = dict.fromkeys(("loss", "gradients", "buffers", "rng"))
    if theirs is not None and not fake:
        equal["loss"] = same(ours.loss, theirs.loss)
        if not equal["loss"]:
            found.append(f"loss is {ours.loss.item()!r} planned and {theirs.loss.item()!r} plain")
        for kind, a, b in (("gradients", ours.gradients, theirs.gradients), ("buffers", ours.buffers, theirs.buffers)):
            wrong = [k for k in b if not same(a[k], b[k])]  # type: ignore[index]
            equal[kind] = not wrong
            found += [f"{len(wrong)} of {len(b)} {kind} differ, first {wrong[0]}"] if wrong else []
        equal["rng"] = all(same(a, b) for a, b in zip(ours.rng, theirs.rng, strict=True))
        found += [] if equal["rng"] else ["the RNG state after the step differs"]
    return Check(
        equal["loss"], equal["gradients"], equal["buffers"], equal["rng"],
        predicted_peak_bytes=plan.activation_peak_bytes,
        measured_peak_bytes=ours.peak,
        plain_peak_bytes=None if theirs is None else theirs.peak,
        plain_seconds=None if theirs is None else theirs.seconds,
        planned_seconds=ours.seconds,
        flops_overhead=flops_overhead,
        differences=found,
    )  # fmt: skip


def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Bitwise equality (NaN equals NaN); None equals None."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


@contextlib.contextmanager
def _forward(model: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    before = model.__dict__.get("forward")
    model.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del model.__dict__["forward"]
        else:
            model.__dict__["forward"] = before


@contextlib.contextmanager
def state_kept(model: nn.Module, fake: bool = False) -> Iterator[None]:
    """Buffers, attributes and RNG state as before, afterwards."""
    attributes = Attributes(model)
    buffers = [] if fake else [(b, b.detach().clone()) for b in _carried(model).values()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with contextlib.nullcontext() if fake else torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            attributes.restore()
            with torch.no_grad():
                for b, old in buffers:
                    b.copy_(old)


def _carried(model: nn.Module) -> dict[str, torch.Tensor]:
    """Buffers and tensors that are plain attributes, by name."""
    return dict(model.named_buffers()) | {name: t for name, _, _, t in plain_tensors(model)}


@contextlib.contextmanager
def _put_back(model: nn.Module, tensors: list[torch.Tensor]) -> Iterator[None]:
    """Gradients as before, afterwards; their hooks (an optimizer that steps in backward, say) are off meanwhile."""
    leaves: list[Any] = [*model.parameters(), *(t for t in tensors if t.is_leaf and t.requires_grad)]
    kept = [(t, t.grad) for t in leaves]
    hooks = [h for t in leaves for h in (t._backward_hooks, t._post_accumulate_grad_hooks) if h]
    off = [(h, dict(h)) for h in hooks]
    for h in hooks:
        h.clear()
    try:
        yield
    finally:
        for t, grad in kept:
            t.grad = grad
        for h, content in off:
            h.update(content)


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    on, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(on, warn_only=warn)


def _rng(model: nn.Module) -> list[torch.Tensor]:
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in devices)]
