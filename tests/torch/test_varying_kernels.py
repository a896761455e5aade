"""Kernels that give other bits in every run, as fused attention does on a GPU: two plain steps differ, so a planned one may."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from rekindle.torch.check import verify as check_module
from rekindle.torch.run import trial, variation

LIBRARY = torch.library.Library("varying", "DEF")
LIBRARY.define("backward(Tensor gradient, float noise) -> Tensor")


def _backward(gradient: torch.Tensor, noise: float) -> torch.Tensor:
    """The gradient, off by up to `noise`; no seed governs how far."""
    digits = torch.frombuffer(bytearray(os.urandom(gradient.numel())), dtype=torch.uint8).view(gradient.shape)
    return gradient * (1 + noise * digits.to(gradient.dtype) / 255)


LIBRARY.impl("backward", _backward, "CPU")
torch.library.register_fake("varying::backward", lambda gradient, noise: torch.empty_like(gradient), lib=LIBRARY)


class Varying(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, noise: float) -> torch.Tensor:
        ctx.noise = noise
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return torch.ops.varying.backward(gradients[0], ctx.noise), None


class Net(nn.Module):
    """The gradients of `first` vary from step to step, those of `last` do not."""

    def __init__(self, noise: float = 1e-5):
        super().__init__()
        self.first, self.mid, self.last = nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 4)
        self.noise = noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(Varying.apply(self.mid(self.first(x).relu()).relu(), self.noise)).square().sum()


def made(noise: float = 1e-5) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Net(noise), torch.randn(32, 16)


def plan_of(model: nn.Module, x: torch.Tensor) -> rekindle.Plan:
    return rekindle.plan(rekindle.trace(model, x, progress=False), minimize="memory", cache=False, progress=False)


def test_it_varies() -> None:
    model, x = made()
    gradients = []
    for _ in range(2):
        model.zero_grad()
        model(x).backward()
        gradients.append(model.first.weight.grad.clone())  # type: ignore[union-attr, operator]
    assert not torch.equal(*gradients)


def test_a_step_as_close_as_plain_steps_are_to_each_other_passes() -> None:
    model, x = made()
    check = rekindle.verify(model, x, plan_of(model, x))
    assert check.ok, check
    assert check.loss_equal
    assert check.gradients_equal is False
    assert set(check.varying) == {"first.weight", "first.bias", "mid.weight", "mid.bias"}
    assert check.close["gradients"][0] < 8e-5
    assert "two plain steps differ too" in str(check)


def test_checkpoint_says_so_and_trains() -> None:
    model, x = made()
    with pytest.warns(rekindle.RekindleWarning, match="two plain steps differ too"):
        model = rekindle.checkpoint(model, x, minimize="memory", cache=False, progress=False)
    model(x).backward()


def test_a_plan_for_another_shape_passes_its_trial() -> None:
    model, x = made()
    with pytest.warns(rekindle.RekindleWarning, match="two plain steps differ too"):
        model = rekindle.checkpoint(model, x, minimize="memory", cache=False, progress=False)
    model(x[:20]).backward()
    assert len(list(model.forward.bounds)) == 2  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize("name", ["first.weight", "last.weight"])
def test_what_is_farther_off_or_does_not_vary_is_a_difference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made()
    plan, real = plan_of(model, x), check_module.run

    def run(s: Any, forward: Any, which: str, *rest: Any) -> Any:
        made = real(s, forward, which, *rest)
        if which == "planned":
            made.gradients[name] = made.gradients[name] * (1.2 if name == "first.weight" else 1.00001)
        return made

    monkeypatch.setattr(check_module, "run", run)
    check = rekindle.verify(model, x, plan)
    assert not check.ok
    assert name in check.differences[0]


def test_one_plain_step_more_tells_that_nothing_varies(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made(noise=0.0)
    plan, real, plain_steps = plan_of(model, x), check_module.run, []

    def run(s: Any, forward: Any, which: str, *rest: Any) -> Any:
        made = real(s, forward, which, *rest)
        plain_steps.append(which)
        if which == "planned":
            made.gradients["first.weight"] = made.gradients["first.weight"] * 1.0001
        return made

    monkeypatch.setattr(check_module, "run", run)
    check = rekindle.verify(model, x, plan)
    assert not check.ok
    assert check.varying == ()
    assert plain_steps.count("plain") == 2


def test_the_limit_is_a_multiple_of_how_far_plain_steps_are_apart() -> None:
    one = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([4.0]), "c": torch.tensor([1.0])}
    two = one | {"a": torch.tensor([1.0, 2.0002])}
    three = two | {"b": torch.tensor([4.001])}
    found = variation.allowed(one, ["a", "b", "c"], [two, three, three])
    assert found.keys() == {"a", "b"}
    assert found["a"] >= variation.SETTINGS.times * 0.000099
    assert found["b"] == pytest.approx(variation.SETTINGS.times * 0.00025, rel=1e-2)
    assert variation.allowed(one, ["c"], iter([one])) == {}


def test_more_than_rounding_does_not_count_as_varying() -> None:
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.01])
    assert variation.allowed({"a": one}, ["a"], [{"a": other}]) == {}
    assert variation.allowed({"a": one.bfloat16()}, ["a"], [{"a": other.bfloat16()}]).keys() == {"a"}
    with torch.autocast("cpu", torch.bfloat16):
        assert variation.allowed({"a": one}, ["a"], [{"a": other}]).keys() == {"a"}


def test_the_trial_finds_a_wrong_gradient_among_those_that_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made()
    real = trial._step
    calls = []

    def step(*args: Any) -> Any:
        loss, gradients = real(*args)
        calls.append(1)
        if len(calls) == 1:  # the planned step runs first
            gradients["first.weight"] = gradients["first.weight"] * 1.2
        return loss, gradients

    monkeypatch.setattr(trial, "_step", step)
    planned = rekindle.apply(copy.deepcopy(model), plan_of(model, x))
    with pytest.warns(
        rekindle.RekindleWarning, match=r"did not give the plain step's numbers \(the gradients of first\.weight"
    ):
        planned(x[:20]).backward()
