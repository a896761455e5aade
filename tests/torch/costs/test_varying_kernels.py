"""Fused attention gives other gradients in every step on a GPU: two plain steps differ there, and so may a planned one.

Here an op with a backward of noise stands for attention, on the CPU.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from rekindle.torch.measure import trial, variation
from rekindle.torch.rewrite.closeness import difference
from rekindle.torch.serve import verify as check_module

LIBRARY = torch.library.Library("varying", "DEF")
LIBRARY.define("backward(Tensor gradient, float noise) -> Tensor")
WARNING = "as close to a plain step's as plain steps are to each other"


def _backward(gradient: torch.Tensor, noise: float) -> torch.Tensor:
    """The gradient, off by up to `noise`; no seed governs how far."""
    digits = torch.frombuffer(bytearray(os.urandom(gradient.numel())), dtype=torch.uint8).view(gradient.shape)
    return gradient * (1 + noise * digits.to(gradient.dtype) / 255)


LIBRARY.impl("backward", _backward, "CPU")
torch.library.register_fake("varying::backward", lambda gradient, noise: torch.empty_like(gradient), lib=LIBRARY)


@pytest.fixture(autouse=True)
def _stands_for_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variation, "_VARYING", ("varying",))  # the namespace of the op
    monkeypatch.setattr(variation, "_DEVICES", ("cpu",))


class Varying(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, noise: float) -> torch.Tensor:
        ctx.noise = noise
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return torch.ops.varying.backward(gradients[0], ctx.noise), None


class Net(nn.Module):
    """The gradients of `first` and `mid` vary from step to step, those of `last` do not."""

    def __init__(self, noise: float, dropout: float):
        super().__init__()
        self.first, self.mid, self.last = nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 4)
        self.drop, self.noise = nn.Dropout(dropout), noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mid(self.drop(self.first(x).relu())).relu()
        return self.last(Varying.apply(x, self.noise)).square().sum()


def made(noise: float = 1e-5, dropout: float = 0.0) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Net(noise, dropout), torch.randn(32, 16)


def plan_of(model: nn.Module, x: torch.Tensor) -> rekindle.Plan:
    return rekindle.plan(rekindle.trace(model, x, progress=False), minimize="memory", cache=False, progress=False)


def with_gradient(monkeypatch: pytest.MonkeyPatch, name: str, change: Any, which: str = "planned") -> list[str]:
    """Change a gradient of every planned step; returns the steps that run."""
    real, steps = check_module.run, list[str]()

    def run(s: Any, forward: Any, kind: str, *rest: Any) -> Any:
        outcome = real(s, forward, kind, *rest)
        steps.append(kind)
        if kind == which:
            outcome.gradients[name] = change(outcome.gradients[name])
        return outcome

    monkeypatch.setattr(check_module, "run", run)
    return steps


def test_it_varies() -> None:
    model, x = made()
    gradients = []
    for _ in range(2):
        model.zero_grad()
        model(x).backward()
        gradients.append(model.first.weight.grad.clone())  # type: ignore[union-attr, operator]
    assert not torch.equal(*gradients)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_step_as_close_as_plain_steps_are_to_each_other_passes(dropout: float) -> None:
    """With dropout a second pair of steps is compared."""
    model, x = made(dropout=dropout)
    check = rekindle.verify(model, x, plan_of(model, x))
    assert check.ok, check
    assert check.loss_equal
    assert check.gradients_equal is False
    assert set(check.varying) == {"first.weight", "first.bias", "mid.weight", "mid.bias"}
    assert check.close == {}
    assert "gradients  as close as plain steps are to each other" in str(check)


def test_checkpoint_says_so_and_trains() -> None:
    model, x = made()
    with pytest.warns(rekindle.RekindleWarning, match=WARNING):
        model = rekindle.checkpoint(model, x, minimize="memory", cache=False, progress=False)
    model(x).backward()


def test_a_plan_for_another_shape_passes_its_trial_and_says_so() -> None:
    model, x = made()
    planned = rekindle.apply(model, plan_of(model, x))
    with pytest.warns(rekindle.RekindleWarning, match=WARNING):
        planned(x[:20]).backward()
    assert len(list(planned.forward.bounds)) == 2  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("first.weight", lambda g: g * 1.001),
        ("first.weight", lambda g: -g),
        ("first.bias", torch.zeros_like),
        ("last.weight", lambda g: g * 1.000001),
    ],
    ids=["farther", "turned", "zeros", "does not vary"],
)
def test_a_wrong_gradient_is_a_difference(name: str, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made()
    plan = plan_of(model, x)
    with_gradient(monkeypatch, name, change)
    check = rekindle.verify(model, x, plan)
    assert not check.ok
    assert check.differences[0].startswith(f"1 of 6 gradients differ, first {name}")
    assert name not in check.varying
    assert "gradients  DIFFERS" in str(check)


def test_noise_beyond_rounding_is_a_difference() -> None:
    model, x = made(noise=0.1)
    assert not rekindle.verify(model, x, plan_of(model, x)).ok


def test_another_kernel_that_varies_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a kernel that is not known to vary, a run with other numbers is a fault."""
    monkeypatch.undo()
    model, x = made()
    plan = plan_of(model, x)
    steps = with_gradient(monkeypatch, "last.weight", lambda g: g)
    assert not rekindle.verify(model, x, plan).ok
    assert steps == ["planned", "plain", *["plain"] * 2]  # the last two tell in the error whether plain steps agree


def test_where_the_loss_differs_no_further_steps_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made()
    plan, real, steps = plan_of(model, x), check_module.run, list[str]()

    def run(s: Any, forward: Any, kind: str, *rest: Any) -> Any:
        outcome = real(s, forward, kind, *rest)
        steps.append(kind)
        outcome.loss = outcome.loss + (kind == "planned")
        return outcome

    monkeypatch.setattr(check_module, "run", run)
    check = rekindle.verify(model, x, plan)
    assert [d.split()[0] for d in check.differences] == ["loss", "4"]
    assert steps == ["planned", "plain", *["plain"] * 2]  # the last two tell in the error whether plain steps agree


def test_without_memory_for_further_steps_the_difference_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made()
    plan, real, steps = plan_of(model, x), check_module.run, list[str]()

    def run(s: Any, forward: Any, kind: str, *rest: Any) -> Any:
        steps.append(kind)
        if steps.count("plain") > 1:
            raise torch.OutOfMemoryError("no memory")
        return real(s, forward, kind, *rest)

    monkeypatch.setattr(check_module, "run", run)
    assert not rekindle.verify(model, x, plan).ok


def test_the_trial_finds_a_wrong_gradient_among_those_that_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made()
    real, calls = trial._step, list[int]()

    def step(*args: Any) -> Any:
        found = real(*args)
        calls.append(1)
        if len(calls) == 1:  # the planned step runs first
            found.gradients["first.weight"] = found.gradients["first.weight"] * 1.001
        return found

    monkeypatch.setattr(trial, "_step", step)
    planned = rekindle.apply(model, plan_of(model, x))
    with pytest.warns(rekindle.RekindleWarning, match=r"plain step's numbers \(the gradients of first\.weight\)"):
        planned(x[:20]).backward()


def test_the_limit_is_a_multiple_of_how_far_plain_steps_are_apart() -> None:
    model, x = made()
    step = rekindle.trace(model, x, progress=False)
    one = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([4.0]), "c": torch.tensor([1.0])}
    two = one | {"a": torch.tensor([1.0, 2.00002])}
    three = one | {"a": torch.tensor([1.0, 2.00004]), "b": torch.tensor([4.00004])}
    others = iter([two, three])
    found = variation.allowed(step, one, ["a", "b", "c"], lambda: next(others))
    assert found == {
        "a": pytest.approx(8 * 2e-5, rel=0.02),
        "b": pytest.approx(8 * 1.5e-5, rel=0.02),
    }  # b: 8 times the median
    far = iter([one | {"a": torch.tensor([1.0, 3.0])}] * 2)
    assert variation.allowed(step, one, ["a"], lambda: next(far)) == {"a": variation.EXACT_MOST_SHARE}


def test_both_parts_of_complex_numbers_count() -> None:
    one = torch.tensor([1 + 1j])
    assert difference(one, torch.tensor([1 - 1j])) == 2.0
    assert difference(one.conj(), one) == 2.0
