"""What a plan takes for granted of Python around a module: each change of it is a change of the step, in eager's bits."""

from __future__ import annotations

import copy
import gc
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rekindle
from marks import every, sweep

CONFIG = types.SimpleNamespace(gain=1.0)
ACT = torch.tanh


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * CONFIG.gain


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Bank(nn.Module):
    """A module that is false."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def __len__(self) -> int:
        return 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Net(nn.Module):
    gain = 1.0
    bias = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.bank = nn.Linear(8, 8), nn.Linear(8, 8), Bank()
        self.flags, self.table, self.free = {"relu": True}, np.array([1.0, 2.0]), [nn.Dropout(0.1)]
        self.register_buffer("one", torch.zeros(8))
        self.register_buffer("two", torch.zeros(8))

    def forward(self, x: Any, *more: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        factor = 1.0
        if isinstance(x, dict):
            x, factor = x["x"], x.factor  # type: ignore[attr-defined]
        h = self.free[0](ACT(self.a(x))) * float(self.table[0]) * type(self).gain + Net.bias
        for y in (*more, *named.values()):
            h = h * 0.1 + y
        self.one.add_(1)
        h = torch.relu(h) if "relu" in self.flags else torch.sigmoid(h)
        return scaled(self.b(self.bank(h))) * factor + self.one + self.two


class Batch(dict):
    factor = 1.0


def step(model: nn.Module, /, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(7)
    loss = model(*args, **kwargs).square().sum()
    loss.backward()
    grads = [torch.zeros(()) if p.grad is None else p.grad.clone() for p in model.parameters()]
    return [loss.detach(), *grads, *(b.clone() for b in model.buffers()), torch.get_rng_state()]


def equal(plain: nn.Module, planned: nn.Module, /, *args: Any, **kwargs: Any) -> bool:
    return all(map(torch.equal, step(plain, *args, **kwargs), step(planned, *args, **kwargs)))


def twins(sample: Any = None, **how: Any) -> tuple[Any, Any, torch.Tensor]:
    """(plain, planned, input)."""
    torch.manual_seed(0)
    plain, x = Net(), torch.randn(4, 8)
    planned = copy.deepcopy(plain)
    rekindle.checkpoint(
        planned, x if sample is None else sample(x), minimize="memory", solver="storages", progress=False, **how
    )
    return plain, planned, x


def rename_key(m: Any) -> None:
    m.flags["tanh"] = m.flags.pop("relu")


def write_array(m: Any) -> None:
    m.table[0] = 3.0


def swap_class(m: Any) -> None:
    m.a.__class__ = Doubled


def set_free(m: Any) -> None:
    m.free[0].p = 0.6


def evaluate_free(m: Any) -> None:
    m.free[0].eval()


def hook_free(m: Any) -> None:
    m.free[0].register_forward_hook(lambda m, i, o: 2 * o)


def share_buffers(m: Any) -> None:
    m.two = m.one


@pytest.mark.parametrize(
    "change", every(3, [rename_key, write_array, swap_class, set_free, evaluate_free, hook_free, share_buffers])
)
def test_a_change_that_only_python_sees(change: Callable[[Any], None]) -> None:
    plain, planned, x = twins()
    assert equal(plain, planned, x)
    for m in (plain, planned):
        change(m)
    assert equal(plain, planned, x)
    assert equal(plain, planned, x)


@pytest.mark.parametrize(
    ("where", "name", "value"),
    every(2, [(Net, "gain", 2.0), (Net, "bias", 0.5), (CONFIG, "gain", 3.0), (None, "ACT", torch.sigmoid)]),
)
def test_a_change_outside_of_the_module(where: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, planned, x = twins()
    assert equal(plain, planned, x)
    if where is None:
        monkeypatch.setitem(globals(), name, value)
    else:
        monkeypatch.setattr(where, name, value)
    assert equal(plain, planned, x)
    monkeypatch.undo()
    assert equal(plain, planned, x)


def test_hooks_on_all_modules_are_called() -> None:
    plain, planned, x = twins()
    handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: 2 * o if type(m) is nn.Linear else None)
    try:
        assert equal(plain, planned, x)
    finally:
        handle.remove()
    assert equal(plain, planned, x)


@sweep
def test_keywords_that_forward_takes_in_order() -> None:
    plain, planned, x = twins()
    y, z = torch.randn(4, 8), torch.randn(4, 8)
    assert equal(plain, planned, x, p=y, q=z)
    assert equal(plain, planned, x, q=z, p=y)


def test_what_a_mapping_carries_beside_its_entries() -> None:
    def batch(x: torch.Tensor, factor: float) -> Batch:
        made = Batch(x=x)
        made.factor = factor  # type: ignore[misc]
        return made

    plain, planned, x = twins(lambda x: (batch(x, 1.0),))
    assert equal(plain, planned, batch(x, 1.0))
    assert equal(plain, planned, batch(x, 2.0))


@sweep
def test_autocast_without_its_cache() -> None:
    plain, planned, x = twins()
    for cached in (True, False, True):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
            assert equal(plain, planned, x)


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return self.a(x).tanh() + y


def test_an_input_that_is_written_to_and_shares_memory() -> None:
    torch.manual_seed(0)
    plain, x = Writes(), torch.randn(4, 8)
    planned = copy.deepcopy(plain)
    rekindle.checkpoint(planned, (x.clone(), x.clone()), minimize="memory", solver="storages", progress=False)
    one, two = x.clone(), x.clone()
    with pytest.warns(rekindle.RekindleWarning, match="none can be made"):
        assert all(map(torch.equal, step(plain, one, one.view(4, 8)), step(planned, two, two.view(4, 8))))


def test_a_shallow_copy_runs_its_own_attributes() -> None:
    plain, planned, x = twins()
    for m in (ours := copy.copy(plain), copied := copy.copy(planned)):
        m.flags = {}
    assert equal(ours, copied, x)
    del planned
    assert equal(ours, copied, x)


def test_plans_keep_nothing_of_earlier_states_alive() -> None:
    _, planned, x = twins()
    step(planned, x)
    gc.collect()
    gc.disable()
    try:
        old = [weakref.ref(planned.a), weakref.ref(planned.free[0])]
        planned.a, planned.free = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), [nn.Identity()]
        step(planned, x)
        assert [ref() for ref in old] == [None, None]
    finally:
        gc.enable()


def test_another_state_without_a_plan_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from rekindle.torch.serve import refusals as module

    _, planned, x = twins(on_new_shape="plain")
    traced: list[int] = []
    real = module.trace_call
    monkeypatch.setattr(module, "trace_call", lambda *a, **k: (traced.append(1), real(*a, **k))[1])
    planned.flags = {}
    planned.table[0] = 1.5
    with pytest.warns(rekindle.RekindleWarning, match="no plan"):
        step(planned, x)
    for _ in range(3):
        step(planned, x)
    assert len(traced) == 1


@sweep
def test_threads_that_meet_new_shapes() -> None:
    _, one, _ = twins()
    two = copy.deepcopy(one)
    failed: list[BaseException] = []

    def train(model: nn.Module, first: int) -> None:
        try:
            for n in range(3):
                model(torch.randn(first + n, 8)).sum().backward()
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=train, args=(m, n)) for m, n in ((one, 10), (two, 20), (two, 30))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not failed
    assert not any(t.is_alive() for t in threads)
    assert "__getattribute__" not in vars(nn.Module)


def test_to_put_a_plan_on_is_no_change() -> None:
    """The first call of a plan takes a quick look at the module, and compares nothing."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    rekindle.checkpoint(model, torch.ones(2, 4), minimize="memory", effort="quick", check=False, progress=False)
    assert [b.guards.unchanged(model) for b in model.forward.bounds] == [True]
    model.extra = 1
    assert [b.guards.unchanged(model) for b in model.forward.bounds] == [False]
