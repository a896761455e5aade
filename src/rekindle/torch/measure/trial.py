"""Tries a plan that was made in the middle of a run on the call that it was made for, before that call trains by it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from ...errors import RekindleError, TraceError
from ...saying import notices
from ..capture.inner_checkpoints import checkpoints_inside
from ..capture.left_out import as_if_left_out
from ..capture.trace_errors import OF_FIRST_CALLS
from ..private import is_fake
from ..rewrite.closeness import loose
from ..run.bound import BoundPlan
from ..run.own_forward import autocast_of_backward
from ..run.sample import copies, owned
from ..run.shared_casts import block_of_its_own
from ..situation.module_call import ModuleCall
from ..tensors import tree
from ..tensors.loss import default_loss
from ..undo.attributes import plain_tensors
from ..undo.kept import Before
from .as_before import as_before
from .comparison import compare, unless_plain_steps_vary
from .measured_step import Outcome
from .witness import Witness

log = logging.getLogger("rekindle")
T = TypeVar("T")
Forward = Callable[[list[torch.Tensor]], torch.Tensor]  # from the call's tensors to the loss
# Kind of results that differ -> the kind and the names in words.
_WORDS = (("loss", "the loss"), ("buffers", "{}, to which forward writes"), ("gradients", "the gradients of {}"))


def differences(
    model: nn.Module, plain: Callable[..., Any], bound: BoundPlan, call: ModuleCall, witness: Witness | None = None
) -> list[str]:
    """How one planned step differs from one plain step, both on copies of the call's inputs, in words. [] if the steps agree,
    up to rounding where the plan adds up in another order, or, with fused attention, as far as two plain steps do; or if the
    plain step does not fit the device.

    witness : watches the plain step; it holds no values if the steps could not be compared.

    Neither step touches gradients, or runs the hooks with which data-parallel training waits for them; the model is put back.
    """

    def planned(tensors: list[torch.Tensor]) -> torch.Tensor:
        own = call.on(tensors)
        return default_loss(bound(model, own), own.given, tensors)

    def eager(forward: Callable[..., Any]) -> Forward:
        def run(tensors: list[torch.Tensor]) -> torch.Tensor:
            own = call.on(tensors)
            args, kwargs = own.form.arguments(own.given)
            result = forward(*args, **kwargs)
            read = as_if_left_out(result, bound.trace.options.unused)
            return default_loss(read, own.given, [*tensors, *tree.tensors_in(result)])

        return run

    given = [*call.tensors, *tree.leaves(call.spec)]

    def steps(*wanted: tuple[Forward, Witness | None]) -> list[Outcome]:
        made: list[Outcome] = []
        with as_before(model, given) as before:
            for forward, watching in wanted:
                if made:
                    before.again()
                    before.tensors.without_gradients()
                with block_of_its_own():
                    made.append(_step(before, model, forward, call.tensors, watching))
        return made

    outcomes: list[Outcome] = []
    with contextlib.suppress(torch.OutOfMemoryError):
        outcomes = steps((planned, None), (eager(witness.of_forward(plain) if witness else plain), witness))
    if not outcomes:
        if witness is not None:
            witness.values.clear()
        return []
    (ours, theirs), may = outcomes, loose(bound.trace.lowered.captured)
    found = compare(ours, theirs, False, may)
    found = unless_plain_steps_vary(found, ours, theirs, may, bound.trace, lambda: steps((eager(plain), None))[0])
    if found.varying and not found.differences:
        notices.warn(
            f"gradients of a planned step of {type(model).__name__} are as close to a plain step's as plain steps are to "
            "each other, and no closer, by fused attention. torch.use_deterministic_algorithms(True) makes it deterministic"
        )
    return [words.format(", ".join(wrong[:3])) for kind, words in _WORDS if (wrong := found.wrong.get(kind))]


def _step(
    before: Before,
    model: nn.Module,
    forward: Forward,
    given: list[torch.Tensor],
    witness: Witness | None,
) -> Outcome:
    """One step. before : the model before it."""
    twins = copies(given, owned(model))
    inputs: dict[str, torch.Tensor] = {f"input {i}": t for i, t in enumerate(twins) if t.requires_grad}
    leaves = {k: p for k, p in model.named_parameters() if p.requires_grad} | inputs
    if witness is not None:
        attributes = (t for *_, t in plain_tensors(model))
        witness.expect([*twins, *model.parameters(), *model.buffers(), *attributes])
    with witness or contextlib.nullcontext():
        with checkpoints_inside():  # else torch lets no `autograd.grad` through them
            loss = forward(twins)
        with autocast_of_backward(model):
            gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    by_name: dict[str, torch.Tensor | None] = dict(zip(leaves, gradients, strict=True))
    return Outcome(loss.detach(), by_name, {**before.written(model)}, [], False, 0, 0.0, tuple(inputs))


def for_later_calls(model: nn.Module, call: ModuleCall, plan: Callable[[], T], error: TraceError | None) -> T | None:
    """The plan that `plan` makes while the module is as its first plain call leaves it, with the tensors and attributes that
    forward sets then (ranges, position indices, states). Afterwards the module is as it was. None: there is no such plan.

    error : why the first call cannot be captured. Where that call changes nothing that a capture depends on, later ones cannot
        be captured either.
    """
    if any(t.is_meta or is_fake(t) for t in [*model.parameters(), *call.tensors]):
        return None
    args, kwargs = call.form.arguments(tree.unflatten(copies(call.tensors, owned(model)), call.spec))
    with as_before(model, [*call.tensors, *tree.leaves(call.spec)]) as before:
        try:
            model(*args, **kwargs)
            if error is None or error.reason in OF_FIRST_CALLS or before.set_up(model):
                return plan()
        except Exception as e:
            if isinstance(e, RekindleError) and not isinstance(e, TraceError):
                raise  # later calls can be captured, but the goal cannot be met
            log.info("%s has no plan for its later calls: %r", type(model).__name__, e)
    return None
