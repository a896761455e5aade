"""Compares a step of a planned module with a plain one: the same numbers, and the peak that the plan predicts.

Results that a plan with parity="close" adds up in another order are compared up to rounding. Fused attention on a GPU varies
from step to step under deterministic algorithms too: where gradients alone differ in a step that has it, two more plain steps
tell how far apart gradients may be (`Check.varying`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ...errors import ParityError, PlanMismatch, RekindleError, UsageError
from ...model.plan import Plan
from ...parts.plan import PartsPlan
from ...planning.carrying import Replanned
from ...printed import listed
from ...saying.sizes import format_bytes
from .. import accept
from ..costs.operator_calls import FlopCount
from ..measure.as_before import as_before
from ..measure.comparison import KINDS, Compared, compare, unless_plain_steps_vary, without_others_draws
from ..measure.first_difference import explained
from ..measure.measured_step import Calls, LossOf, Outcome, Subject, run
from ..private import fake_mode_of
from ..rewrite.closeness import NOTHING, Loose, loose
from ..run.sample import Sample
from ..tensors import tree
from ..tensors.precision import deterministic
from ..tensors.rng import cuda_indices
from .planned import PlannedForward, planned_forward


@dataclass(frozen=True)
class Check:
    """The result of `verify`: parity with eager, and predicted and measured peaks.

    loss_equal, gradients_equal, buffers_equal, rng_equal : bitwise equality of the planned step with the plain one;
        None if they could not be compared (fake tensors, or the plain step does not fit the device). Gradients are taken of
        parameters and inputs; `buffers_equal` covers everything that forward writes: buffers, attributes, inputs.
    close : of a plan with parity="close", what is equal up to rounding and not bitwise: "loss", "gradients" or "buffers" -> the
        largest difference relative to the largest element of its tensor (or to a hundredth of the largest of all gradients,
        where that is larger), and the name of that tensor. These are no `differences`.
    varying : names of the gradients that differ, and of which two plain steps have other bits too, because fused attention adds
        up in another order in every step. Such a gradient is about as close to the plain step's as those are to each other,
        and is no difference.
    predicted_peak_bytes, measured_peak_bytes, plain_peak_bytes : activation peaks: bytes above what is held before the
        step and stays (parameters, buffers, inputs, a gradient for every trained parameter, if the loop keeps them); the
        plain one is measured.
    plain_seconds, planned_seconds : one step each, measured with the instruments on.
    flops_overhead : extra FLOPs of the executed step / FLOPs of the plain one, counted; None if not asked for.
    differences : the differences, in words.
    held_peak_bytes : the measured activation peak of the planned step in a loop that holds the results until the step is
        over; None if not asked for.
    cause : of differences, in words: whether two plain steps agree, and the first operator of the planned step that gives other
        results; "" where nothing differs.
    eager_difference : of a plan with compiled parts, which is compared with the step that compiles them without a plan: the
        largest difference of that step's loss and gradients from the uncompiled one's, relative to the largest element of the
        tensor; None where both draw other random numbers.
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
    cause: str = ""
    close: dict[str, tuple[float, str]] = field(default_factory=dict)
    varying: tuple[str, ...] = ()
    eager_difference: float | None = None

    @property
    def largest_difference(self) -> float:
        """The largest of the differences in `close`; 0.0 where all is bitwise equal."""
        return max((off for off, _ in self.close.values()), default=0.0)

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    @property
    def peak_error(self) -> float:
        """(measured - predicted) / predicted activation peak."""
        return self.measured_peak_bytes / self.predicted_peak_bytes - 1 if self.predicted_peak_bytes else 0.0

    def __str__(self) -> str:
        kinds = (
            ("loss", self.loss_equal),
            ("gradients", self.gradients_equal),
            ("buffers", self.buffers_equal),
            ("RNG state", self.rng_equal),
        )
        return "\n".join(
            [f"{k:<10} {self._word(k, x)}" for k, x in kinds]
            + [f"peak       {format_bytes(self.measured_peak_bytes)} measured, "
               f"{format_bytes(self.predicted_peak_bytes)} predicted ({self.peak_error:+.2%})"]
            + ([] if self.held_peak_bytes is None else
               [f"           {format_bytes(self.held_peak_bytes)} measured while the results are held"])
            + ([f"varying    {self.varying_words}"] if self.varying else [])
            + ([] if self.eager_difference is None else
               [f"eager      {self.eager_difference:.1e} away from the step without torch.compile (largest difference)"])
            + self.differences
            + ([self.cause] if self.cause else [])
        )  # fmt: skip

    @property
    def varying_words(self) -> str:
        """The gradients that vary from plain step to plain step, in words; "" where none does."""
        if not self.varying:
            return ""
        return f"two plain steps differ too, by fused attention: gradients of {listed(self.varying, 1)}"

    def _word(self, kind: str, equal: bool | None) -> str:
        if kind in self.close:
            off, name = self.close[kind]
            return f"close (largest difference {off:.1e}{f': {name}' if name else ''})"
        if kind == "gradients" and self.varying and not self.differences:
            return "as close as plain steps are to each other"
        return {True: "bitwise equal", False: "DIFFERS", None: "not compared"}[equal]


def check_step(
    model: nn.Module,
    sample: Any,
    plan: Plan | None = None,
    *,
    loss: LossOf | None = None,
    count_flops: bool = False,
    held: bool = False,
    plain: Outcome | None = None,
) -> Check:
    """`rekindle.verify` of the plan of a whole step; None: the plan that the module has.

    held : run and measure one more planned step, in which the caller holds the results to the end. plain : of the plain step
    from the same state, which is run if it is None. Raises as `rekindle.verify`.
    """
    planned = own = planned_forward(model)
    if plan is not None:
        planned = PlannedForward(model, plan, "error", lambda *_: Replanned(plan, ""), check=False)
    if planned is None:
        raise UsageError("the model has no plan; give one, or call rekindle.apply(model, plan) first")
    accept.measurable(model, *accept.sample(sample))
    how = planned.plan.trace_options
    s = subject(model, sample, loss, how.gradients, how.unused)
    steps, fake = Steps(s, {"planned": planned, "plain": planned.plain}), s.fake is not None

    with (
        accept.alone("verify", model),
        accept.gradients_on(),
        planned.silent(),
        as_before(model, s.sample.tensors, fake=fake),
        s.fake or deterministic(),
    ):
        if _waits_with_slices(planned):
            steps.run("planned")  # proves the slices, on tensors of its own, which would be measured with the step
        ours, theirs = steps.run("planned"), plain or steps.plain_if_it_fits()
        # the plan of the step that was measured: a second call may bind another
        used = (planned if planned.last is None else planned.last).plan
        may = NOTHING if planned.last is None else loose(planned.last.trace.lowered.captured)
        found = _compared(steps, planned, ours, theirs, Calls.ONCE, may)
        way = Calls.ONCE if found.differences else Calls.TWICE
        ours, theirs = ours.figures(), None if theirs is None else theirs.figures()
        adds_up = planned.last is not None and planned.last.runner.adds_up
        if theirs is not None and not fake and (ours.drew or theirs.drew or adds_up):
            twice = "called twice before backward, with random numbers drawn in between: "
            found = found.and_also(_compare_twice(steps, planned, may), twice)
        made = steps.checked(found, ours, theirs, used, way=way, held=held, count_flops=count_flops)
    for bound in () if own is None else own.bounds:
        if bound.plan is used:
            bound.checked = made
    return made


@dataclass(frozen=True)
class Steps:
    """The two steps of a subject that a check compares, "planned" and "plain".

    forwards : of each. around : makes the context in which such a step runs; none is needed for a step that has no entry.
    """

    s: Subject
    forwards: Mapping[str, Callable[..., Any]]
    around: Mapping[str, Callable[[], AbstractContextManager[Any]]] = field(default_factory=dict)

    def run(self, which: str, way: Calls = Calls.ONCE) -> Outcome:
        """Run one step. which : "planned" or "plain"."""
        with self._around(which):
            return run(self.s, self.forwards[which], which, way)

    def plain_if_it_fits(self, way: Calls = Calls.ONCE) -> Outcome | None:
        """The plain step; None: it does not fit the device, which may be why the model has a plan."""
        with contextlib.suppress(torch.OutOfMemoryError):
            return self.run("plain", way)
        return None

    def checked(
        self, found: Compared, ours: Outcome, theirs: Outcome | None, plan: Plan | PartsPlan, *, way: Calls, held: bool,
        count_flops: bool = False,
    ) -> Check:  # fmt: skip
        """The check of the two steps. Runs more steps for the figures, and to find the cause of a difference.

        found : the comparison of `ours`, the planned step, with `theirs`, the plain one; None: it did not fit. way : how the
        steps were called that differ. held, count_flops : whether these are wanted.
        """
        extra = self._extra_flops() if count_flops and theirs is not None else None
        as_trained = self
        if plan.trace_options.gradients == "consumed":  # the steps that were compared had to keep their gradients
            as_trained = replace(self, s=self.s.consumed())
            ours.peak = as_trained.run("planned").peak
            if theirs is not None:
                theirs.peak = as_trained.run("plain").peak
        top = as_trained.run("planned", Calls.HELD).peak if held else None
        cause = ""
        if found.differences:
            name = type(self.s.model).__name__
            cause = explained(name, *(partial(self.run, which, way) for which in ("plain", "planned")))
        return replace(as_check(found, ours, theirs, plan.activation_peak_bytes, extra, top), cause=cause)

    def _extra_flops(self) -> float | None:
        counts = []
        for which in ("planned", "plain"):
            with FlopCount() as count:  # in steps of their own: counting gets between the model and its kernels
                self.run(which)
            counts.append(count.total)
        return counts[0] / counts[1] - 1 if counts[1] else None

    def _around(self, which: str) -> AbstractContextManager[Any]:
        return self.around.get(which, contextlib.nullcontext)()


def as_check(
    found: Compared, ours: Outcome, theirs: Outcome | None, predicted_bytes: int, flops_overhead: float | None,
    held_peak_bytes: int | None,
) -> Check:  # fmt: skip
    """The check of a planned step, `ours`, against a plain one, `theirs`; None: it did not fit. found : as `compare` gives
    it."""
    equal = found.equal
    return Check(
        equal["loss"], equal["gradients"], equal["buffers"], equal["rng"],
        predicted_peak_bytes=predicted_bytes,
        measured_peak_bytes=ours.peak,
        plain_peak_bytes=None if theirs is None else theirs.peak,
        plain_seconds=None if theirs is None else theirs.seconds,
        planned_seconds=ours.seconds,
        flops_overhead=flops_overhead,
        differences=found.differences,
        held_peak_bytes=held_peak_bytes,
        close=found.close,
        varying=found.varying,
    )  # fmt: skip


def require(check: Check, which: str, plan: Plan | PartsPlan | None = None) -> None:
    """Check that a step kept its promises. which : it in words. plan : whose budget in bytes it keeps, results held.

    Raises
    ------
    ParityError : it gives other numbers than the plain step. PlanMismatch : it takes more than the budget.
    """
    if not check.ok:
        raise ParityError(
            f"{which} does not give the plain step's numbers: {'; '.join(check.differences)}. {check.cause}. "
            "The model is as it was; check=False trains without the comparison"
        )
    budget = None if plan is None else plan.goal.budget
    if plan is not None and budget is not None:
        taken = plan.peak_bytes - plan.activation_peak_bytes + (check.held_peak_bytes or 0)
        if taken > budget:
            raise PlanMismatch(f"{which} takes {format_bytes(taken)} here, above the budget of {format_bytes(budget)}")


def _waits_with_slices(planned: PlannedForward) -> bool:
    """Whether a plan with ops in slices waits for its first call."""
    rewriting = planned.plan.rewriting
    return rewriting is not None and bool(rewriting.slices) and next(planned.bounds, None) is None


def subject(
    model: nn.Module, sample: Any, loss: LossOf | None = None, gradients: str = "kept", unused: Sequence[str] = ()
) -> Subject:
    """The model and its sample, for steps that are compared. gradients, unused : as in `rekindle.trace`; such steps do not use
    gradients up.

    Raises
    ------
    UsageError : the model or its sample lies on the meta device, or on several GPUs.
    """
    args, kwargs = accept.sample(sample)
    tensors = tree.flatten((args, kwargs))[0]
    state = [*model.parameters(), *model.buffers()]
    fake = fake_mode_of([*state, *tensors])
    devices = {t.device for t in [*state, *tensors]}
    cuda = cuda_indices([*state, *tensors])
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
    start = "kept" if gradients == "kept" else "fresh"
    return Subject(model, Sample(model, args, kwargs, fake is not None), loss, fake, device, cuda, start, unused)


def _compare_twice(steps: Steps, planned: PlannedForward, may: Loose) -> Compared:
    """The comparison of steps that call the model twice. Random numbers are drawn between the calls, and one backward goes
    through both. may : what may differ by rounding."""
    bound = planned.last
    adds_up = bound is not None and bound.runner.adds_up
    found = _twice(steps, planned, Calls.JOINED, may, vary=not adds_up)
    if found.differences and bound is not None and adds_up:
        # The sums of one backward through both calls may round differently; a warning says so when such a call is made.
        wrong = [k for k in ("loss", "buffers", "rng") if not found.equal[k]]
        apart = _twice(steps, planned, Calls.TWICE, may)
        if not wrong and not apart.differences:
            bound.runner.let_round()
            return Compared(dict.fromkeys(KINDS, True), varying=apart.varying)
        found = apart if apart.differences else found
    return found


def _twice(steps: Steps, planned: PlannedForward, way: Calls, may: Loose, vary: bool = True) -> Compared:
    nothing = Compared(dict.fromkeys(KINDS, True))
    try:
        theirs = steps.run("plain", way)
    except (RekindleError, torch.OutOfMemoryError):
        return nothing  # the module cannot be called twice before one backward, or memory is too small
    try:
        ours = steps.run("planned", way)
    except (PlanMismatch, torch.OutOfMemoryError):
        # The first call changed something, so that the second needs another plan; or memory is too small.
        return nothing
    return _compared(steps, planned, ours, theirs, way, may) if vary else compare(ours, theirs, False, may)


def _compared(
    steps: Steps, planned: PlannedForward, ours: Outcome, theirs: Outcome | None, way: Calls, may: Loose
) -> Compared:
    """The comparison of a planned step with a plain one. Where gradients alone differ, and fused attention varies from step to
    step, further plain steps tell how far gradients may be apart."""
    found = compare(ours, theirs, steps.s.fake is not None, may)
    if theirs is not None:
        again = ((theirs, partial(steps.run, "plain", way)), (ours, partial(steps.run, "planned", way)))
        found = without_others_draws(found, again)
    if theirs is None or planned.last is None:
        return found
    return unless_plain_steps_vary(found, ours, theirs, may, planned.last.trace, partial(steps.run, "plain", way))
