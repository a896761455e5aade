"""One real step each way: the same numbers, and the peak that was promised."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from ..accept import plan as accept_plan
from ..errors import PlanMismatch, RekindleError, UsageError
from ..plan import Plan
from . import accept, tree
from .attributes import Attributes, plain_tensors
from .capture import disable_autocast
from .flops import FlopCount
from .measure import allocator_peak, storage_peak
from .planned import PlannedForward, planned_forward
from .sample import Sample
from .trace import call_arguments

LossOf = Callable[[Any], torch.Tensor]


@dataclass(frozen=True)
class Check:
    """What `verify` found.

    loss_equal, gradients_equal, buffers_equal, rng_equal : bitwise equality of the planned step with the plain one;
        None where it could not be told (fake tensors, or the plain step does not fit the device). The gradients are those
        of parameters and inputs; with the buffers goes whatever else forward writes: attributes, inputs.
    predicted_peak_bytes, measured_peak_bytes, plain_peak_bytes : activation peaks: bytes above what is held before the
        step and stays (parameters, buffers, inputs, a gradient for every trained parameter); the plain one is measured.
    plain_seconds, planned_seconds : one step each, measured with the instruments on.
    flops_overhead : extra FLOPs of the executed step over the plain one, counted; None where it was not asked for.
    differences : what differs, in words.
    held_peak_bytes : the measured activation peak of the planned step in a loop that holds the results until the step is
        over; None where it was not asked for.
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
    held_peak_bytes: int | None = None

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
            + ([] if self.held_peak_bytes is None else
               [f"           {format_bytes(self.held_peak_bytes)} measured while the results are held"])
            + self.differences
        )  # fmt: skip


@dataclass
class _Outcome:
    """The results of a step. gradients, written : by name. drew : whether it drew random numbers."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor | None]
    written: dict[str, torch.Tensor]
    rng: list[torch.Tensor]
    drew: bool
    peak: int
    seconds: float


@dataclass
class _Subject:
    """A model and its sample. device : its allocator is measured. written : parameters that forward writes to."""

    model: nn.Module
    sample: Sample
    loss: LossOf
    fake: Any
    device: torch.device
    cuda: list[int]
    written: list[str]


def default_loss(result: Any) -> torch.Tensor:
    """The loss a result carries (its `loss`, or a scalar that comes first), else the sum of all that requires grad."""
    tensors, spec = tree.flatten(result, opaque_ok=True)
    places = tree.paths(spec)
    able = [i for i, t in enumerate(tensors) if t.requires_grad]
    scalars = [i for i in able if tensors[i].numel() == 1]
    called = [i for i in scalars if places[i].endswith("['loss']")]
    if len(called) == 1:
        return _sum(tensors[called[0]])
    if scalars[:1] == [0] and places[0] in ("output", "output[0]"):
        return _sum(tensors[0])
    if not able:
        raise UsageError("no result of the model requires grad, so there is no step to verify")
    total = _sum(tensors[able[0]])
    for i in able[1:]:
        total = total + _sum(tensors[i]).to(total.device)
    return total


def _sum(t: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor as a real number, from which backward can start."""
    return torch.view_as_real(t.resolve_conj()).sum() if t.is_complex() else t.sum()


def verify(
    model: nn.Module,
    sample: Any,
    plan: Plan | None = None,
    *,
    loss: LossOf | None = None,
    count_flops: bool = False,
) -> Check:
    """Run one step plain and one planned, from the same parameters, buffers and RNG state, and compare them bit by bit. A
    model that draws random numbers, or uses a parameter more than once, makes a second step each way: it is called twice,
    random numbers are drawn in between, and one backward goes through both calls.

    The module and the sample are left as they were: gradients, buffers, inputs and RNG state. Algorithms are deterministic
    meanwhile.

    Parameters
    ----------
    plan : the plan to check; None: the one the module has (see `apply`).
    loss : result of the model -> scalar; default `default_loss`.
    count_flops : run one more step each way and count its FLOPs.

    Raises
    ------
    UsageError : there is no plan, or no result that requires grad, or the model has no numbers (on the meta device).
    PlanMismatch : the sample is not what the plan is for.
    RekindleError : a step fails; the message tells the error of the module, which is its cause.
    """
    return check_step(model, sample, plan, loss=loss, count_flops=count_flops)


def check_step(
    model: nn.Module,
    sample: Any,
    plan: Plan | None = None,
    *,
    loss: LossOf | None = None,
    count_flops: bool = False,
    held: bool = False,
) -> Check:
    """`verify`; with `held` one more planned step is run and measured, in which the results are held to its end."""
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
    accept.measurable(model, *call_arguments(sample))
    s = _subject(model, sample, loss or default_loss, planned)
    plain = planned.plain
    fake = s.fake is not None

    with accept.gradients_on(), planned.untold(), _put_back(model, s.sample.tensors), s.fake or _deterministic():
        ours = _run(s, planned, "planned")
        theirs = None
        with contextlib.suppress(torch.OutOfMemoryError):  # that it does not fit plain may be why there is a plan
            theirs = _run(s, plain, "plain")
        equal, differences = _compare(ours, theirs, fake)
        ours, theirs = _figures(ours), None if theirs is None else _figures(theirs)
        adds_up = planned.last is not None and planned.last.runner.adds_up
        if theirs is not None and not fake and (ours.drew or theirs.drew or adds_up):
            differences += _compare_twice(s, planned, plain, equal)
        extra = None
        if count_flops and theirs is not None:
            counts = [_flops(s, f) for f in (planned, plain)]
            extra = counts[0] / counts[1] - 1 if counts[1] else None
        top = _run(s, planned, "planned", hold=True).peak if held else None
    used = planned.last.plan if planned.last is not None else planned.plan
    return Check(
        equal["loss"], equal["gradients"], equal["buffers"], equal["rng"],
        predicted_peak_bytes=used.activation_peak_bytes,
        measured_peak_bytes=ours.peak,
        plain_peak_bytes=None if theirs is None else theirs.peak,
        plain_seconds=None if theirs is None else theirs.seconds,
        planned_seconds=ours.seconds,
        flops_overhead=extra,
        differences=differences,
        held_peak_bytes=top,
    )  # fmt: skip


def _subject(model: nn.Module, sample: Any, loss: LossOf, planned: PlannedForward) -> _Subject:
    args, kwargs = call_arguments(sample)
    tensors = tree.flatten((args, kwargs))[0]
    state = [*model.parameters(), *model.buffers()]
    fake = torch._guards.detect_fake_mode([*state, *tensors])
    devices = {t.device for t in [*state, *tensors]}
    cuda = sorted({d.index or 0 for d in devices if d.type == "cuda"})
    if fake is None and any(d.type == "meta" for d in devices):
        raise UsageError(
            f"{type(model).__name__} or its sample lies on the meta device, where there are no numbers to compare; build it "
            "under FakeTensorMode to measure without memory, or move it with to_empty and initialise it"
        )
    if fake is None and len(cuda) > 1:
        raise UsageError(
            f"{type(model).__name__} and its sample lie on {', '.join(f'cuda:{i}' for i in cuda)}; a plan is for one device, "
            "whose peak is measured: plan the part on each device by itself"
        )
    others = sorted({d.type for d in devices} - {"cpu", "cuda"})
    device = torch.device("cuda", cuda[0]) if cuda else torch.device(others[0] if others else "cpu")
    written: list[str] = []
    if planned.plan.trace is not None:
        c = planned.plan.trace.lowered.captured
        targets = {*c.mutations, *(a for w in c.writing.values() for a in w.args if isinstance(a, torch.fx.Node))}
        written = [name for p, name in c.params.items() if p in targets]
    return _Subject(model, Sample(model, args, kwargs, fake is not None), loss, fake, device, cuda, written)


def _flops(s: _Subject, forward: Callable[..., Any]) -> int:
    """FLOPs of one more step, apart from those that are compared: counting gets between the model and its kernels."""
    for p in s.model.parameters():
        p.grad = None  # those of the compared steps are not to be added to
    args, kwargs, _ = s.sample.fresh()
    with _state(s), _forward(s.model, forward), FlopCount() as count:
        _backward(s.loss(s.model(*args, **kwargs)))
    return count.total


def _backward(value: torch.Tensor) -> None:
    with disable_autocast():  # backward belongs outside of it, also where the caller compares inside
        value.backward()  # type: ignore[no-untyped-call]


def _run(
    s: _Subject, forward: Callable[..., Any], which: str, *, hold: bool = False, twice: bool = False, joined: bool = False
) -> _Outcome:  # fmt: skip
    """One step with this forward, from the model's present state, which is put back.

    hold : the results live until the step is over. twice : two calls before the first backward, and random numbers drawn
        after each call and backward. joined : both calls share one backward.
    """
    left: list[torch.Tensor] = []
    args, kwargs, tensors = s.sample.fresh()

    def step() -> None:
        result = s.model(*args, **kwargs)
        value = s.loss(result)
        if not hold:
            del result
        if twice:
            _draw(s)
            other = s.loss(s.model(*args, **kwargs))
            _draw(s)
            if joined:
                value = value + other
            else:
                _backward(other)
                _draw(s)
        _backward(value)
        left.append(value.detach() + other.detach() if twice and not joined else value.detach())

    with _state(s), _forward(s.model, forward), _telling(s.model, which):
        for p in s.model.parameters():
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        before = _rng(s)
        begin = time.perf_counter()
        if s.fake is not None:
            grads = [p.grad for p in s.model.parameters() if p.grad is not None]
            peak = storage_peak(step, [*s.model.parameters(), *s.model.buffers(), *grads]).peak_bytes
        else:
            peak = allocator_peak(step, s.device).peak_bytes
        seconds = time.perf_counter() - begin
        rng = _rng(s)
        gradients = {k: p.grad for k, p in s.model.named_parameters()}
        written = {k: b.detach().clone() for k, b in _carried(s.model, s.written).items()}
        if s.fake is None:
            for i, (name, t) in enumerate(zip(s.sample.names, tensors, strict=True)):
                if t.requires_grad and t.is_leaf and not s.sample.is_owned(i):
                    gradients[name] = t.grad
                if not s.sample.is_owned(i) and not same(t.detach(), s.sample.tensors[i].detach()):
                    written[name] = t.detach()
        drew = not all(map(same, before, rng))
        return _Outcome(left[0], gradients, written, rng, drew, peak, seconds)


def _figures(outcome: _Outcome) -> _Outcome:
    """The outcome without its tensors, which take as much as the model."""
    return _Outcome(torch.empty(0), {}, {}, [], outcome.drew, outcome.peak, outcome.seconds)


@contextlib.contextmanager
def _telling(model: nn.Module, which: str) -> Iterator[None]:
    """An exception of the module becomes the cause of an error that names the step."""
    try:
        yield
    except (RekindleError, torch.OutOfMemoryError):
        raise
    except Exception as e:
        raise RekindleError(
            f"the {which} step of {type(model).__name__} failed with {type(e).__name__}: {e}. The model is as it was; see that "
            "model(sample), its loss and backward work"
        ) from e


def _draw(s: _Subject) -> None:
    """Draw random numbers, as a loss, a hook or the loop may do between two calls."""
    for d in {"cpu", str(s.device)}:
        torch.rand(3, device=d)


def _compare_twice(s: _Subject, planned: PlannedForward, plain: Any, equal: dict[str, bool | None]) -> list[str]:
    """Differences, in words, where the model is called twice, random numbers are drawn in between, and one backward goes
    through both calls; `equal` is updated."""
    found, now = _twice(s, planned, plain, joined=True)
    bound = planned.last
    if found and bound is not None and bound.runner.adds_up:
        # What one backward adds up from both calls may round otherwise; a warning says so when such a call is made.
        wrong = [k for k in ("loss", "buffers", "rng") if not now[k]]
        apart, now_apart = _twice(s, planned, plain, joined=False)
        if not wrong and not apart:
            bound.runner.let_round()
            return []
        found, now = (apart, now_apart) if apart else (found, now)
    equal |= {k: equal[k] and now[k] for k in equal}
    return [f"called twice before backward, with random numbers drawn in between: {x}" for x in found]


def _twice(s: _Subject, planned: Any, plain: Any, joined: bool) -> tuple[list[str], dict[str, bool | None]]:
    nothing: dict[str, bool | None] = dict.fromkeys(("loss", "gradients", "buffers", "rng"), True)
    try:
        theirs = _run(s, plain, "plain", twice=True, joined=joined)
    except (RekindleError, torch.OutOfMemoryError):
        return [], nothing  # it cannot be called twice before one backward, or there is no room
    try:
        ours = _run(s, planned, "planned", twice=True, joined=joined)
    except (PlanMismatch, torch.OutOfMemoryError):
        return [], nothing  # the first call left something by which the second is another call; or there is no room
    equal, found = _compare(ours, theirs, False)
    return found, equal


def _compare(ours: _Outcome, theirs: _Outcome | None, fake: bool) -> tuple[dict[str, bool | None], list[str]]:
    """(equality of each kind, what differs in words)."""
    found: list[str] = []
    equal: dict[str, bool | None] = dict.fromkeys(("loss", "gradients", "buffers", "rng"))
    if theirs is None or fake:
        return equal, found
    equal["loss"] = same(ours.loss, theirs.loss)
    if not equal["loss"]:
        found.append(f"loss is {ours.loss.item()!r} planned and {theirs.loss.item()!r} plain")
    kinds: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
        ("gradients", "gradients", ours.gradients, theirs.gradients),
        ("buffers", "tensors that forward writes", ours.written, theirs.written),
    ]
    for kind, what, a, b in kinds:
        known = list(dict.fromkeys([*b, *a]))
        wrong = [k for k in known if not same(a.get(k), b.get(k))]
        equal[kind] = not wrong
        found += [f"{len(wrong)} of {len(known)} {what} differ, first {wrong[0]}"] if wrong else []
    equal["rng"] = all(same(a, b) for a, b in zip(ours.rng, theirs.rng, strict=True))
    found += [] if equal["rng"] else ["the RNG state after the step differs"]
    return equal, found


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
def _state(s: _Subject) -> Iterator[None]:
    """Buffers, attributes, parameters that forward writes, and random state as before, afterwards."""
    fake = s.fake is not None
    attributes = Attributes(s.model)
    kept = [] if fake else [(b, b.detach().clone()) for b in _carried(s.model, s.written).values()]
    python, numpy = random.getstate(), np.random.get_state()
    with contextlib.nullcontext() if fake else torch.random.fork_rng(devices=s.cuda):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            attributes.restore()
            with torch.no_grad():
                for b, old in kept:
                    if not same(b, old):  # a tensor that was expanded cannot be written, nor does it have to be
                        b.copy_(old)


def _carried(model: nn.Module, written: list[str]) -> dict[str, torch.Tensor]:
    """Buffers, tensors that are plain attributes, and the parameters named, by name."""
    parameters = {k: model.get_parameter(k).detach() for k in written}
    return dict(model.named_buffers()) | {name: t for name, _, _, t in plain_tensors(model)} | parameters


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


def _rng(s: _Subject) -> list[torch.Tensor]:
    if s.fake is not None:
        return []
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in s.cuda)]
