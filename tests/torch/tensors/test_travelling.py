"""Planned modules in pickles, files of torch.save and spawned processes: they take their plans along."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import every, sweep
from models_in_parts import differing, routed, train
from pairs import Net
from rekindle import PartsPlan
from steps_compared import QUICK, assert_same_steps, differences, step


def sample() -> torch.Tensor:
    return torch.rand(8, 16, generator=torch.Generator().manual_seed(0))


def by_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def by_save(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("travel", every(2, [by_pickle, by_save]))
def test_a_planned_module_takes_its_plan_along(travel: Callable[[nn.Module], nn.Module]) -> None:
    model = Net()
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, sample(), **QUICK, progress=False, on_new_shape="error")
    arrived = travel(model)
    assert arrived.forward.plan.trace is None
    assert arrived.forward.plan.schedule == model.forward.plan.schedule
    assert_same_steps(arrived, twin, lambda i: sample())
    assert arrived.forward.last is not None
    with pytest.raises(rekindle.PlanMismatch):  # the option came along
        arrived(sample()[:3])
    rekindle.restore(arrived)
    assert "forward" not in arrived.__dict__


@sweep
def test_one_that_has_run_and_come_back_goes_on() -> None:
    model = Net()
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, sample(), **QUICK, progress=False)
    assert_same_steps(model, twin, lambda i: sample())
    assert_same_steps(by_pickle(by_pickle(model)), twin, lambda i: sample())


class Inside(nn.Module):
    """Holds a planned module, and two names of it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.also = self.net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).sum() + self.also(x).sum()


@sweep
def test_a_planned_submodule_travels_with_the_module_around_it() -> None:
    model = Inside()
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model.net, sample(), **QUICK, progress=False)
    arrived = by_pickle(model)
    assert arrived.net is arrived.also
    assert not differences(step(arrived, sample()), step(twin, sample()))
    assert arrived.net.forward.last is not None


@sweep
def test_plans_of_parts_travel() -> None:
    torch.manual_seed(0)
    model, batch = routed()
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, batch, minimize="memory", effort="quick", progress=False)
    arrived = by_pickle(model)
    assert isinstance(arrived.forward.plan, PartsPlan)
    assert [p.path for p in arrived.forward.plan.parts] == [p.path for p in model.forward.plan.parts]
    assert differing(train(arrived, batch), train(twin, batch)) == 0
    ran = [m.forward.last is not None for m in arrived.modules() if hasattr(m.forward, "bounds")]
    assert ran
    assert all(ran)
    rekindle.restore(arrived)
    assert not [name for name, m in arrived.named_modules() if "forward" in m.__dict__]


def works(model: nn.Module, queue: Any) -> None:
    """In another process: one step, and whether the plan ran."""
    found = step(model, sample())
    queue.put(({k: v.tolist() for k, v in found.items()}, model.forward.last is not None))


def test_a_planned_module_goes_to_a_spawned_process() -> None:
    torch.manual_seed(0)
    model = Net()
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, sample(), **QUICK, progress=False)
    context = torch.multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=works, args=(model, queue))
    process.start()
    found, ran = queue.get()
    process.join()
    assert ran
    assert found == {k: v.tolist() for k, v in step(twin, sample()).items()}


def test_a_damaged_plan_is_refused() -> None:
    model = Net()
    rekindle.checkpoint(model, sample(), **QUICK, progress=False)
    damaged = pickle.dumps(model).replace(b'"peak_bytes": ', b'"peak_bytos": ')
    with pytest.raises(rekindle.FormatError, match="the plan of a pickled module"):
        pickle.loads(damaged)


@pytest.mark.parametrize("how", every(2, ["plan", "plain"]))
def test_the_first_call_after_travelling_may_have_a_new_shape(how: str) -> None:
    model = Net()
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, sample(), **QUICK, progress=False, on_new_shape=how)
    arrived = by_pickle(model)
    with pytest.warns(rekindle.RekindleWarning, match="no plan") if how == "plain" else contextlib.nullcontext():
        assert not differences(step(arrived, sample()[:3]), step(twin, sample()[:3]))
    assert not differences(step(arrived, sample()), step(twin, sample()))
    assert arrived.forward.last.plan.schedule == model.forward.plan.schedule
    assert len(list(arrived.forward.bounds)) == (2 if how == "plan" else 1)
