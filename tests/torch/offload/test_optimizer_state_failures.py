"""A held step that fails or is interrupted loses nothing, and can be taken again."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from copy_engines import FailingEngine, LateEngine
from held_state import MAKE, Counts, Trained, gradients, hold, net, on_device, pair, same
from rekindle import RekindleError
from rekindle.torch.offload import away, optimizer_state
from rekindle.torch.offload.away import ThreadEngine
from rekindle.torch.offload.optimizer_state import StateOnHost
from rekindle.torch.offload.state_part import Part


def before_a_second_step(name: str) -> tuple[Trained, Trained, StateOnHost]:
    """The plain model and optimizer, and those whose state the host holds, with gradients for the second step."""
    theirs, ours = pair(MAKE[name])
    held = hold(*ours)
    for model, optimizer in (theirs, ours):
        gradients(model, 0)
        optimizer.step()
        gradients(model, 1)
    return theirs, ours, held


def expect_it_goes_on(theirs: Trained, ours: Trained, held: StateOnHost) -> None:
    """A second `step()` does what a failed one has left, and one more is as the plain one."""
    for i in range(2):
        for model, optimizer in (theirs, ours):
            if i:
                gradients(model, 2)
            optimizer.step()
    assert same(theirs, ours)
    assert not on_device(ours[1], held)


def test_a_step_that_fails_can_be_taken_again(monkeypatch: pytest.MonkeyPatch, small_parts: None) -> None:
    theirs, ours, held = before_a_second_step("sgd-momentum")
    step, left = optimizer_state.step_without_hooks, [2]

    def fails(*args: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise MemoryError("no more")
        return step(*args)

    groups = ours[1].param_groups
    with monkeypatch.context() as m:
        m.setattr(optimizer_state, "step_without_hooks", fails)
        with pytest.raises(MemoryError):
            ours[1].step()
    assert ours[1].param_groups is groups
    assert {p.grad is None for p in held._parts[0].params} == {True}
    assert {p.grad is None for part in held._parts[1:] for p in part.params} == {False}
    expect_it_goes_on(theirs, ours, held)


class FailingBack(ThreadEngine):
    """Its copies to the device fail."""

    def back(self, host: torch.Tensor, device: torch.Tensor, after: Any) -> Any:
        failed: Future[Any] = Future()
        failed.set_exception(OSError("the link is down"))
        return away.ThreadEvent(failed)


@pytest.mark.parametrize("engine", [FailingEngine, FailingBack])
def test_a_copy_that_fails_is_an_error_and_nothing_is_lost(
    engine: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    theirs, ours, held = before_a_second_step("sgd-momentum")
    with monkeypatch.context() as m:
        broken = engine()
        m.setattr(away, "engine_of", lambda device: broken)
        with pytest.raises(OSError, match="the link is down"):
            ours[1].step()
    expect_it_goes_on(theirs, ours, held)


@pytest.mark.parametrize("copies", range(6))
@pytest.mark.parametrize("way", ["back", "out"])
def test_a_step_that_is_interrupted_can_be_taken_again(
    way: str, copies: int, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    theirs, ours, held = before_a_second_step("adamw")
    used, left = LateEngine(), iter(range(copies))
    real = getattr(used, way)

    def interrupted(*args: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as m:
        m.setattr(used, way, interrupted)
        m.setattr(away, "engine_of", lambda device: used)
        with pytest.raises(KeyboardInterrupt):
            ours[1].step()
    expect_it_goes_on(theirs, ours, held)


def test_a_step_that_is_interrupted_while_memory_goes_can_be_taken_again(small_parts: None) -> None:
    """With some tensors of a part on the host and others on the device still."""
    theirs, ours = pair(MAKE["adamw"])
    held = hold(*ours)
    for model, _ in (theirs, ours):
        gradients(model, 0)
    lines: list[int] = []

    def interrupts(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is not Part.gone.__code__:
            return interrupts if event == "call" else None
        if event == "line" and frame.f_locals.get("t") is not None:
            lines.append(1)
            if len(lines) == 2:
                raise KeyboardInterrupt
        return interrupts

    before = sys.gettrace()
    sys.settrace(interrupts)
    try:
        with pytest.raises(KeyboardInterrupt):
            ours[1].step()
    finally:
        sys.settrace(before)
    expect_it_goes_on(theirs, ours, held)


def test_another_group_of_an_optimizer_whose_state_comes_at_once_is_refused_each_time() -> None:
    model = net()
    optimizer = Counts([*model.parameters()][:4])
    hold(model, optimizer)
    gradients(model, 0)
    optimizer.add_param_group({"params": [*model.parameters()][4:]})
    before = copy.deepcopy(model.state_dict())
    for _ in range(2):
        with pytest.raises(RekindleError, match="comes to the device at once"):
            optimizer.step()
    assert all(map(torch.equal, before.values(), model.state_dict().values()))
