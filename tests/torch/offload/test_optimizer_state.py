"""An optimizer whose state the host holds trains as it does without, bit for bit, and little of the state is on the device."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

import rekindle
from copy_engines import Late, LateEngine, ShuffledEngine, SlowEngine
from held_state import MAKE, OWN, Counts, gradients, hold, net, on_device, pair, same
from rekindle.torch.costs.resident import state_bytes
from rekindle.torch.offload import away, optimizer_state
from rekindle.torch.offload.optimizer_state import bring_back
from rekindle.torch.offload.state_part import Part

SMALL = 2 * 4096 + 2 * 512 * 8  # bytes of parts of a few parameters of the model below


ENGINES: list[Callable[[], Any]] = [LateEngine, SlowEngine, ShuffledEngine]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", sorted(MAKE))
def test_steps_are_the_plain_ones_however_late_copies_are(
    name: str, engine: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    used = engine()
    monkeypatch.setattr(away, "engine_of", lambda device: used)
    theirs, ours = pair(MAKE[name])
    held = hold(*ours)
    assert (len(held._parts) > 1) == (name in OWN and held.bytes > 0)
    for i in range(4):
        for model, optimizer in (theirs, ours):
            gradients(model, i, without=i)
            optimizer.step()
        assert same(theirs, ours)
        assert bool(on_device(ours[1], held)) == (name in ("counts", "flat", "by norm"))  # they share memory
    bring_back(ours[0])
    gradients(theirs[0], 9), gradients(ours[0], 9)
    theirs[1].step(), ours[1].step()
    assert same(theirs, ours)
    assert "step" not in vars(ours[1])


def zeros(optimizer: Optimizer) -> dict[str, Any]:
    """A state of zeros."""
    doc = copy.deepcopy(optimizer.state_dict())
    for t in (t for s in doc["state"].values() for t in s.values() if isinstance(t, torch.Tensor)):
        t.zero_()
    return doc


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_training_is_the_plain_one(data: st.DataObject) -> None:
    """Steps without some gradients, state that is loaded or replaced, new groups, and the state brought back at any time."""
    name = data.draw(st.sampled_from(sorted(MAKE)))
    used = data.draw(st.sampled_from([LateEngine, ShuffledEngine]))()
    size = data.draw(st.sampled_from([1, SMALL, 10**9]))
    with pytest.MonkeyPatch.context() as m:
        m.setattr(optimizer_state, "PART_BYTES", size)
        m.setattr(away, "engine_of", lambda device: used)
        theirs, ours = pair(MAKE[name])
        for i in range(data.draw(st.integers(1, 6))):
            do = data.draw(
                st.sampled_from(["hold", "step", "step", "load", "load back", "replace", "data", "bring back"])
            )
            if do == "hold":
                hold(*ours)
            elif do == "bring back":
                bring_back(ours[0])
            elif do == "load":
                saved = [copy.deepcopy(o.state_dict()) for _, o in (theirs, ours)]
                for (_, o), doc in zip((theirs, ours), saved, strict=True):
                    o.load_state_dict(doc)
            elif do == "load back":
                saved = [o.state_dict() for _, o in (theirs, ours)]
                for (_, o), doc in zip((theirs, ours), saved, strict=True):
                    o.load_state_dict(zeros(o))
                    o.load_state_dict(doc)
            elif do == "data":
                for _, o in (theirs, ours):
                    for s in o.state.values():
                        for t in (t for t in s.values() if isinstance(t, torch.Tensor) and t.ndim):
                            t.data = t.data + 1
            elif do == "replace":
                for model, o in (theirs, ours):
                    for s in [o.state[p] for p in list(model.parameters())[i::2] if p in o.state]:
                        s |= {k: t * 2 for k, t in s.items() if isinstance(t, torch.Tensor) and t.ndim}
            else:
                without = data.draw(st.integers(-1, 7))
                for model, o in (theirs, ours):
                    gradients(model, i, without)
                    o.step()
            assert same(theirs, ours), do


def test_an_edge_that_is_left_out_is_seen(monkeypatch: pytest.MonkeyPatch, small_parts: None) -> None:
    """Without it the tests above would prove nothing."""
    monkeypatch.setattr(away, "engine_of", lambda device: LateEngine())
    theirs, ours = pair(MAKE["adamw"])
    hold(*ours)
    real = Part.arrived

    def without(self: Part) -> None:
        if self._there is not None:
            self._there = Late(lambda: None)  # the copy would write to memory that is another's by then
        real(self)

    monkeypatch.setattr(Part, "arrived", without)
    for i in range(2):
        for model, optimizer in (theirs, ours):
            gradients(model, i)
            optimizer.step()
    assert not same(theirs, ours)


@pytest.mark.parametrize("without", [-1, 2])
def test_two_parts_are_on_the_device_at_most(without: int, monkeypatch: pytest.MonkeyPatch, small_parts: None) -> None:
    theirs, ours = pair(MAKE["adamw"])
    held = hold(*ours)
    assert held.bytes == state_bytes(theirs[1], theirs[0])
    seen: list[int] = []
    real = optimizer_state.step_without_hooks

    def watched(*args: Any) -> Any:
        seen.append(sum(part._whole.nbytes for part in held._parts if part._whole is not None))
        return real(*args)

    monkeypatch.setattr(optimizer_state, "step_without_hooks", watched)
    for i in range(2):
        gradients(ours[0], i, without)
        ours[1].step()
    assert len(seen) == 2 * (len(held._parts) - (without >= 0))
    assert 0 < max(seen) <= held.most_bytes


def test_hooks_run_once_and_schedulers_made_before_or_after_count(small_parts: None) -> None:
    theirs, ours = pair(MAKE["adamw"])
    before = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for _, o in (theirs, ours)]
    hold(*ours)
    after = [torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for _, o in (theirs, ours)]
    calls: list[str] = []
    ours[1].register_step_pre_hook(lambda *_: calls.append("before"))
    ours[1].register_step_post_hook(lambda *_: calls.append("after"))
    everywhere = register_optimizer_step_pre_hook(lambda o, *_: calls.append("all") if o is ours[1] else None)
    for i in range(3):
        for model, optimizer in (theirs, ours):
            gradients(model, i)
            optimizer.step()
        for s in (*before, *after):
            s.step()
    everywhere.remove()
    assert same(theirs, ours)
    assert calls == ["all", "before", "after"] * 3


def test_closures_and_grad_scalers_work(small_parts: None) -> None:
    theirs, ours = pair(MAKE["adamw fused"])
    hold(*ours)
    x = torch.rand(8, 16)
    losses = []
    for model, optimizer in (theirs, ours):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

        def closure(model: nn.Module = model, optimizer: Optimizer = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(x).square().mean()
            loss.backward()
            return loss

        losses.append(optimizer.step(closure))
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean() * float("inf")).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        optimizer.zero_grad()  # they are no numbers
    assert torch.equal(losses[0], losses[1])
    assert same(theirs, ours)


def test_tensors_that_share_memory_over_parts_stay_right(small_parts: None) -> None:
    theirs, ours = pair(MAKE["sgd-momentum"])
    for model, optimizer in (theirs, ours):
        shared = torch.ones(32)
        for p in (model[1].weight, model[1].bias):  # type: ignore[index]
            optimizer.state[p]["momentum_buffer"] = shared[:]
    hold(*ours)
    for i in range(3):
        for model, optimizer in (theirs, ours):
            gradients(model, i)
            optimizer.step()
        assert same(theirs, ours)


def test_a_new_group_is_held_too(small_parts: None) -> None:
    theirs, ours = pair(lambda p: torch.optim.AdamW([*p][:4]))
    held = hold(*ours)
    for model, optimizer in (theirs, ours):
        gradients(model, 0)
        optimizer.step()
        optimizer.add_param_group({"params": [*model.parameters()][4:], "lr": 0.5})
        gradients(model, 1)
        optimizer.step()
    assert same(theirs, ours)
    assert not on_device(ours[1], held)


def test_parameters_that_are_trained_later_have_small_parts(small_parts: None) -> None:
    model = net()
    for p in model.parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    held = hold(model, optimizer)
    for p in model.parameters():
        p.requires_grad_(True)
    gradients(model, 0)
    optimizer.step()
    assert len(held._parts) > 1
    assert not on_device(optimizer, held)


def test_one_optimizer_may_train_two_models(small_parts: None) -> None:
    one, two = net(), net()
    optimizer = torch.optim.AdamW([*one.parameters(), *two.parameters()])
    held = hold(one, optimizer)
    assert hold(two, optimizer) is held
    bring_back(one)
    assert "step" in vars(optimizer)
    bring_back(two)
    assert "step" not in vars(optimizer)


def test_an_optimizer_that_nobody_uses_dies() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    dies = weakref.ref(hold(model, optimizer))
    gc.collect()
    assert dies() is not None
    del optimizer
    gc.collect()
    assert dies() is None
    bring_back(model)


def test_what_stays_on_the_device_is_said() -> None:
    class Lists(Counts):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            super().step(closure)
            for s in self.state.values():
                s["all"] = [t.clone() for t in s.values() if isinstance(t, torch.Tensor)]

    model = net()
    optimizer = Lists(model.parameters())
    hold(model, optimizer)
    gradients(model, 0)
    with pytest.warns(rekindle.RekindleWarning, match="of the state of Lists stay on the device"):
        optimizer.step()


def wraps_its_step(optimizer: Optimizer) -> Optimizer:
    step = optimizer.step

    @functools.wraps(step)
    def scaled(*args: Any) -> Any:
        for p in (p for g in optimizer.param_groups for p in g["params"] if p.grad is not None):
            p.grad *= 0.5
        return step(*args)

    optimizer.step = scaled  # type: ignore[method-assign]
    return optimizer


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_wrapped_step_runs_once(scheduled: bool, small_parts: None) -> None:
    theirs, ours = pair(MAKE["adamw"])
    for _, optimizer in (theirs, ours):
        if scheduled:
            torch.optim.lr_scheduler.StepLR(optimizer, 1)
        wraps_its_step(optimizer)
    hold(*ours)
    for i in range(2):
        for model, optimizer in (theirs, ours):
            gradients(model, i)
            optimizer.step()
    assert same(theirs, ours)


def test_a_patched_class_steps_as_it_was_patched(monkeypatch: pytest.MonkeyPatch, small_parts: None) -> None:
    steps: list[int] = []
    real = torch.optim.AdamW.step

    @functools.wraps(real)
    def counted(*args: Any, **kwargs: Any) -> Any:
        steps.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", counted)
    model, optimizer = pair(MAKE["adamw"])[0]
    hold(model, optimizer)
    gradients(model, 0)
    optimizer.step()
    assert steps == [1]


def test_gradients_through_a_step_are_right(small_parts: None) -> None:
    found = []
    for held in (False, True):
        model = net().requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, differentiable=True)
        if held:
            hold(model, optimizer)
        scale = torch.tensor(2.0, requires_grad=True)
        for _ in range(2):
            for p in model.parameters():
                p.grad = torch.ones_like(p) * scale
            optimizer.step()
        loss = model(torch.ones(4, 16)).square().mean()
        found.append(torch.autograd.grad(loss, scale)[0])
    assert torch.equal(*found)


def test_parameters_that_are_replaced_are_forgotten(small_parts: None) -> None:
    """Models whose parameters are replaced now and then, as when points are split, keep no part of the old ones."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    held = hold(model, optimizer)
    for i in range(3):
        gradients(model, i)
        optimizer.step()
        params = optimizer.param_groups[0]["params"]
        optimizer.state.pop(params[0])
        params[0] = nn.Parameter(params[0].detach().clone())
        model[0].weight = params[0]  # type: ignore[index]
    gradients(model, 5)
    optimizer.step()
    assert len(held._parts) == len(params)


def test_each_tensor_of_the_state_owns_its_memory(small_parts: None) -> None:
    theirs, ours = pair(MAKE["adamw"])
    held = hold(*ours)
    for model, optimizer in (theirs, ours):
        gradients(model, 1)
        optimizer.step()
    away = [t.detach() for part in held._parts for t in part.on_host()]
    assert away
    assert [t.untyped_storage().nbytes() for t in away] == [t.nbytes for t in away]
    # So a copy of one tensor, or of the whole by pickle, takes as much as without.
    states = [optimizer.state_dict() for _, optimizer in (theirs, ours)]
    plain, kept = (len(pickle.dumps(state)) for state in states)
    assert kept <= 1.02 * plain
    one, other = (copy.deepcopy(state["state"][0]["exp_avg"]).untyped_storage().nbytes() for state in states)
    assert one == other
    # They keep the block alive.
    before = [t.clone() for t in away]
    bring_back(ours[0])
    del held, states, ours, model, optimizer
    gc.collect()
    assert all(map(torch.equal, away, before))
