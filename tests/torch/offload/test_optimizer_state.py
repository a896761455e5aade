"""An optimizer whose state the host holds trains as it does without, bit for bit, and little of the state is on the device."""

from __future__ import annotations

import copy
import functools
import gc
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

import rekindle
from copy_engines import FailingEngine, Late, LateEngine, ShuffledEngine, SlowEngine
from rekindle import InfeasibleBudget, RekindleError, TraceError, UsageError
from rekindle.torch.costs.optimizer_trial import names, optimizers_by_name
from rekindle.torch.costs.optimizers import state_bytes
from rekindle.torch.offload import away, optimizer_state
from rekindle.torch.offload.away import ThreadEngine
from rekindle.torch.offload.optimizer_state import StateOnHost, bring_back, held_on_host
from rekindle.torch.offload.state_part import Part

SMALL = 2 * 4096 + 2 * 512 * 8  # bytes of parts of a few parameters of the model below


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 24), nn.Linear(24, 4))


class Counts(Optimizer):
    """Divides its updates by a count of its steps, keeps past gradients in a tensor that grows, and a view of that tensor."""

    def __init__(self, params: Any):
        super().__init__(params, {"lr": 0.1})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.steps += 1
        for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
            s = self.state[p]
            mean = s.setdefault("mean", torch.zeros_like(p))
            s["past"] = torch.cat([s.get("past", torch.zeros(0, *p.shape))[-2:], p.grad[None]])
            s["last"] = s["past"][-1]
            p -= mean.lerp_(p.grad, 0.1) / self.steps + 0.1 * s["past"].mean(0) + 0.01 * s["last"]


class Partly(Counts):
    """Updates one tensor of its state in place and replaces another, and keeps all of them in a list as well."""

    def __init__(self, params: Any):
        super().__init__(params)
        self.all = list[torch.Tensor]()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
            s = self.state[p]
            if "mean" not in s:
                self.all.append(s.setdefault("mean", torch.zeros_like(p)))
            p -= 0.1 * s["mean"].lerp_(p.grad, 0.1) + 0.01 * s.get("past", p.grad)
            s["past"] = p.grad.clone()
        for t in self.all:
            t *= 0.99


class Flat(Counts):
    """Keeps its state in one tensor of its own, of which the state has views."""

    def __init__(self, params: Any):
        super().__init__(params)
        self.flat = dict[nn.Parameter, torch.Tensor]()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
            if p not in self.flat:
                self.flat[p] = torch.zeros(p.numel())
                self.state[p]["mean"] = self.flat[p].view_as(p)
            self.flat[p].mul_(0.9).add_(p.grad.flatten())
            p -= 0.1 * self.state[p]["mean"]


class ByNorm(torch.optim.SGD):
    """Divides all gradients by the norm of all, and keeps them in its state."""

    def __init__(self, params: Any):
        super().__init__(params, 0.1, momentum=0.9)

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        params = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        torch.nn.utils.clip_grad_norm_(params, 0.1)
        for p in params:
            self.state[p]["gradient"] = p.grad
        return super().step(closure)


def by_name(name: str) -> Callable[[Any], Optimizer]:
    cls, options = optimizers_by_name()[name]
    return lambda params: cls([p for p in params if p.ndim == 2 or name != "muon"], **options)


OWN: dict[str, Callable[[Any], Optimizer]] = {name: by_name(name) for name in {*names()} - {"lbfgs", "lion"}} | {
    "adamw fused": lambda p: torch.optim.AdamW(p, amsgrad=True, fused=True),
    "adam foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "sgd by groups": lambda p: torch.optim.SGD(
        [{"params": [q], "lr": 0.1 / (i + 1)} for i, q in enumerate(p)], momentum=0.9
    ),
}
OTHERS: dict[str, Callable[[Any], Optimizer]] = {
    "counts": Counts,
    "partly": Partly,
    "flat": Flat,
    "by norm": ByNorm,
    "lion": by_name("lion"),
}
MAKE = OWN | OTHERS
ENGINES: list[Callable[[], Any]] = [LateEngine, SlowEngine, ShuffledEngine]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer_state, "PART_BYTES", 1)  # a part for each parameter that has state


def hold(model: nn.Module, optimizer: Optimizer) -> StateOnHost:
    with held_on_host(model, optimizer) as held:
        return held


def gradients(model: nn.Module, seed: int, without: int = -1) -> None:
    g = torch.Generator().manual_seed(seed)
    for i, p in enumerate(model.parameters()):
        p.grad = None if i == without else torch.rand(p.shape, generator=g) - 0.5


def pair(make: Callable[[Any], Optimizer]) -> list[tuple[nn.Module, Optimizer]]:
    models = [net(), net()]
    return [(m, make(m.parameters())) for m in models]


def same(a: tuple[nn.Module, Optimizer], b: tuple[nn.Module, Optimizer]) -> bool:
    """Whether weights, gradients and all of the state are the same."""
    weights = [all(map(torch.equal, a[0].state_dict().values(), b[0].state_dict().values()))]
    grads = [
        (p.grad is None) == (q.grad is None) and (p.grad is None or q.grad is None or torch.equal(p.grad, q.grad))
        for p, q in zip(a[0].parameters(), b[0].parameters(), strict=True)
    ]
    one, two = (o.state_dict()["state"] for _, o in (a, b))
    state = [
        torch.equal(x, two[i][k]) if isinstance(x, torch.Tensor) else x == two[i][k]
        for i, entries in one.items() for k, x in entries.items()
    ]  # fmt: skip
    return all([*weights, *grads, *state, one.keys() == two.keys()])


def on_device(optimizer: Optimizer, held: StateOnHost) -> int:
    """Bytes of tensors of the state that lie in no block of the host's."""
    blocks = {part.block.untyped_storage()._cdata for part in held._parts}
    found = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor) and t.ndim]
    return sum(t.nbytes for t in found if t.untyped_storage()._cdata not in blocks)


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


def test_a_step_that_fails_can_be_taken_again(monkeypatch: pytest.MonkeyPatch, small_parts: None) -> None:
    theirs, ours = pair(MAKE["sgd-momentum"])
    held = hold(*ours)
    for model, optimizer in (theirs, ours):
        gradients(model, 0)
        optimizer.step()
        gradients(model, 1)
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
    ours[1].step()
    theirs[1].step()
    gradients(theirs[0], 2), gradients(ours[0], 2)
    theirs[1].step(), ours[1].step()
    assert same(theirs, ours)
    assert not on_device(ours[1], held)


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
    theirs, ours = pair(MAKE["sgd-momentum"])
    held = hold(*ours)
    for model, optimizer in (theirs, ours):
        gradients(model, 0)
        optimizer.step()
        gradients(model, 1)
    with monkeypatch.context() as m:
        broken = engine()
        m.setattr(away, "engine_of", lambda device: broken)
        with pytest.raises(OSError, match="the link is down"):
            ours[1].step()
    ours[1].step()  # of the parts that are left
    theirs[1].step()
    gradients(theirs[0], 2), gradients(ours[0], 2)
    theirs[1].step(), ours[1].step()
    assert same(theirs, ours)
    assert not on_device(ours[1], held)


@pytest.mark.parametrize("copies", range(6))
@pytest.mark.parametrize("way", ["back", "out"])
def test_a_step_that_is_interrupted_can_be_taken_again(
    way: str, copies: int, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    theirs, ours = pair(MAKE["adamw"])
    held = hold(*ours)
    for model, optimizer in (theirs, ours):
        gradients(model, 0)
        optimizer.step()
        gradients(model, 1)
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
    ours[1].step()
    theirs[1].step()
    gradients(theirs[0], 2), gradients(ours[0], 2)
    theirs[1].step(), ours[1].step()
    assert same(theirs, ours)
    assert not on_device(ours[1], held)


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
    ours[1].step()
    theirs[1].step()
    gradients(theirs[0], 2), gradients(ours[0], 2)
    theirs[1].step(), ours[1].step()
    assert same(theirs, ours)
    assert not on_device(ours[1], held)


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


def test_what_cannot_be_done_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    for optimizer, words in (
        ("adamw", "give it as optimizer="),
        (None, "give it as optimizer="),
        (torch.optim.LBFGS(model.parameters()), "runs the model while it steps"),
    ):
        with pytest.raises(UsageError, match=words):
            rekindle.checkpoint(
                model, torch.rand(8, 16), budget=0.9, optimizer=optimizer, offload="optimizer", progress=False
            )
    with pytest.raises(UsageError, match='gradients="consumed" for one that steps'):
        rekindle.checkpoint(
            model, torch.rand(8, 16), budget="1MiB", gradients="consumed", offload="optimizer", progress=False,
            optimizer=torch.optim.AdamW(model.parameters()),
        )  # fmt: skip
    with pytest.raises(UsageError, match=r"is for rekindle.checkpoint"):
        rekindle.plan(rekindle.trace(model, torch.rand(8, 16)), budget=0.9, offload="optimizer")
    theirs = Counts(model.parameters())
    hold(model, theirs)
    with pytest.raises(RekindleError, match="call step\\(\\) without a closure"):
        theirs.step(lambda: torch.zeros(()))
    with pytest.raises(RekindleError, match="steps by another function"):
        type(theirs).step(theirs)
    bring_back(model)
    type(theirs).step(theirs)
    monkeypatch.setattr(away, "host_room", lambda: 100)
    with pytest.raises(RekindleError, match="the host has 100 B left for it"):
        hold(model, torch.optim.AdamW(model.parameters()))


@pytest.fixture
def big() -> tuple[nn.Module, torch.Tensor, Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)) for _ in range(4)])
    return model, torch.rand(64, 128), torch.optim.AdamW(model.parameters())


def test_checkpoint_leaves_the_state_out_of_the_step(
    big: tuple[nn.Module, torch.Tensor, Optimizer], capsys: pytest.CaptureFixture[str], small_parts: None
) -> None:
    model, x, optimizer = big
    twin = copy.deepcopy(model)
    theirs = torch.optim.AdamW(twin.parameters())
    counted = rekindle.trace(model, x, optimizer=optimizer).graph.resident_bytes
    rekindle.checkpoint(model, x, budget="4MiB", optimizer=optimizer, offload="optimizer")
    plan: Any = model.forward.plan  # type: ignore[union-attr]
    assert plan.graph.resident_bytes == counted - state_bytes(optimizer, model)
    said = capsys.readouterr().err
    assert "the host holds the state of AdamW (2.0 MiB)" in said
    assert 'the optimizer\'s state (2.0 MiB), which offload="optimizer" holds on the host' in plan.sentence
    for _ in range(3):
        for m, o in ((twin, theirs), (model, optimizer)):
            o.zero_grad()
            m(x).square().mean().backward()
            o.step()
    assert same((twin, theirs), (model, optimizer))
    rekindle.checkpoint(model, x, budget="8MiB", optimizer=optimizer, progress=False)  # not held any more
    assert "step" not in vars(optimizer)
    assert model.forward.plan.graph.resident_bytes == counted  # type: ignore[union-attr]


def test_a_checkpoint_that_fails_leaves_the_optimizer_as_it_was(
    big: tuple[nn.Module, torch.Tensor, Optimizer],
) -> None:
    model, x, optimizer = big
    model(x).square().mean().backward()
    optimizer.step()
    before = {id(t) for s in optimizer.state.values() for t in s.values()}
    sizes = len(optimizer._optimizer_step_pre_hooks)
    with pytest.raises(InfeasibleBudget, match="while AdamW steps"):
        rekindle.checkpoint(model, x, budget="2MiB", optimizer=optimizer, offload="optimizer", progress=False)
    with pytest.raises(TraceError):
        rekindle.checkpoint(model, x[:, 1:], budget="6MiB", optimizer=optimizer, offload="optimizer", progress=False)
    assert "step" not in vars(optimizer)
    assert len(optimizer._optimizer_step_pre_hooks) == sizes
    assert len(before) == sum(map(len, optimizer.state.values()))


def test_the_optimizer_of_parts_is_held_too(big: tuple[nn.Module, torch.Tensor, Optimizer], small_parts: None) -> None:
    model, x, optimizer = big
    rekindle.checkpoint(model, x, budget="8MiB", parts="*", optimizer=optimizer, offload="optimizer", progress=False)
    plan: Any = model.forward.plan  # type: ignore[union-attr]
    assert 'which offload="optimizer" holds on the host' in plan.sentence
    rekindle.restore(model)
    assert "step" not in vars(optimizer)
