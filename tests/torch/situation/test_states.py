"""A plan runs exactly when it should: what changes on the module, or in how it is called, leads to another plan or to a plain
step with a word, never to old numbers."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from changing_net import GAINS, Config, Net, equal, global_set, pair, plans, silent, step
from marks import every, sweep


def set_dropout(m: Any) -> None:
    m.blocks[1].drop.p = 0.5


def set_scale(m: Any) -> None:
    m.scale = 0.7


def set_scale_to_int(m: Any) -> None:
    m.scale = 3


def set_a_rate(m: Any) -> None:
    m.rates[1] = 0.25


def set_rates(m: Any) -> None:
    m.rates = (0.5, 0.5, 0.5)


def set_config(m: Any) -> None:
    m.config.gain = 2.0


def set_config_table(m: Any) -> None:
    m.config.table["shift"] = 0.5


def exchange_config(m: Any) -> None:
    m.blocks[0].config = Config()
    m.blocks[0].config.gain = 3.0


def set_activation(m: Any) -> None:
    m.blocks[2].act = torch.sigmoid


def set_closure(m: Any) -> None:
    factor = 2.0

    def act(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    m.blocks[2].act = act


def set_partial(m: Any) -> None:
    m.blocks[2].act = functools.partial(torch.clamp, min=-0.1)


def patch_forward(m: Any) -> None:
    linear = m.blocks[1].linear
    linear.forward = lambda x: nn.functional.linear(x, linear.weight) * 2


def patch_method(m: Any) -> None:
    m.norm.forward = types.MethodType(lambda self, x: x * self.weight, m.norm)


def forward_hook(m: Any) -> None:
    m.blocks[0].linear.register_forward_hook(lambda mod, args, out: out * 2)


def pre_hook(m: Any) -> None:
    m.head.register_forward_pre_hook(lambda mod, args: (args[0] + 1,))


def backward_hook(m: Any) -> None:
    m.blocks[1].linear.register_full_backward_hook(lambda mod, gi, go: (gi[0] * 3,))


def own_hook(m: Any) -> None:
    m.register_forward_hook(lambda mod, args, out: out * 2)


def exchange_module(m: Any) -> None:
    m.blocks[1] = nn.Sequential(nn.Linear(8, 8, bias=False), nn.GELU())


def exchange_activation_module(m: Any) -> None:
    m.norm = nn.Identity()


def evaluate_part(m: Any) -> None:
    m.blocks[0].eval()


def freeze(m: Any) -> None:
    m.blocks[2].requires_grad_(False)


def tie(m: Any) -> None:
    m.blocks[1].linear.weight = m.blocks[0].linear.weight


CHANGES = [
    set_dropout, set_scale, set_scale_to_int, set_a_rate, set_rates, set_config, set_config_table, exchange_config,
    set_activation, set_closure, set_partial, patch_forward, patch_method, forward_hook, pre_hook, backward_hook, own_hook,
    exchange_module, exchange_activation_module, evaluate_part, freeze, tie,
]  # fmt: skip


@pytest.fixture(scope="module")
def made() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    return pair()


@pytest.mark.parametrize("change", every(3, CHANGES), ids=lambda f: f.__name__)
def test_a_change_of_the_module_is_a_change_of_the_step(made: Any, change: Callable[[Any], None]) -> None:
    plain, planned, x = copy.deepcopy(made)
    torch.manual_seed(3)
    assert equal(plain, planned, x)
    for m in (plain, planned):
        torch.manual_seed(4)
        change(m)
    assert equal(plain, planned, x)
    assert equal(plain, planned, x)


@sweep
def test_a_patched_class_is_a_change(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, planned, x = copy.deepcopy(made)
    assert equal(plain, planned, x)
    with monkeypatch.context() as m:
        m.setattr(nn.Dropout, "forward", lambda self, x: x * 0.5)
        assert equal(plain, planned, x)
        m.setattr(Net, "kind_scale", 4.0)
        assert equal(plain, planned, x)
    assert equal(plain, planned, x)
    with global_set("GAIN", 0.25):
        assert equal(plain, planned, x)
    GAINS[0] = 0.5
    try:
        assert equal(plain, planned, x)
    finally:
        GAINS[0] = 1.0
    assert equal(plain, planned, x)


def test_what_was_planned_once_is_not_planned_again(made: Any) -> None:
    _, planned, x = copy.deepcopy(made)
    step(planned, x)
    for rate in (0.5, 0.4, 0.2, 0.5, 0.4):
        planned.blocks[0].drop.p = rate
        step(planned, x)
    assert plans(planned) == 3
    with silent():
        planned.unread, planned.note = planned.unread + 1, "seen"
        step(planned, x)
    assert plans(planned) == 3


def test_a_change_takes_over_the_plan_of_the_same_graph(made: Any, capfd: pytest.CaptureFixture[str]) -> None:
    _, planned, x = copy.deepcopy(made)
    step(planned, x)
    set_dropout(planned)
    step(planned, x)
    said = capfd.readouterr().err
    assert "blocks.1.drop.p" in said
    assert "took over the plan" in said


def test_a_closure_that_changes() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.factor = nn.Linear(4, 4), None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.by(self.linear(x))

    def scaled(model: Any) -> Callable[[float], None]:
        factor = 1.0

        def by(x: torch.Tensor) -> torch.Tensor:
            return x.tanh() * factor

        def put(value: float) -> None:
            nonlocal factor
            factor = value

        model.by = by
        return put

    model, twin, x = Scaled(), Scaled(), torch.randn(5, 4)
    twin.load_state_dict(model.state_dict())
    puts = [scaled(model), scaled(twin)]
    rekindle.checkpoint(model, x, minimize="memory", solver="storages")
    for value in (1.0, 2.0, 0.5):
        for put in puts:
            put(value)
        assert equal(twin, model, x)
