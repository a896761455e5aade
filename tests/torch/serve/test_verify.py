"""The measured check: what it compares, what it leaves alone, and what it says of models that cannot be checked."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rekindle
from checked_models import FAST, Body, planned
from rekindle import RekindleError, TraceError, UsageError
from rekindle.torch.serve.verify import check_step
from rekindle.torch.tensors.loss import default_loss


@pytest.mark.parametrize("write", [lambda x: x.add_(1), lambda x: x.mul_(0.5), lambda x: x[:2].zero_()])
def test_a_model_that_writes_over_its_input(write: Callable[[torch.Tensor], Any]) -> None:
    """The planned step read what the plain one had left, and the sample stayed modified."""
    model, x = Body(write), torch.rand(8, 16)
    before = x.clone()
    check = rekindle.verify(model, x, planned(model, x))
    assert check.ok, check
    assert torch.equal(x, before)
    rekindle.checkpoint(model, x, minimize="memory", solver=FAST)
    assert torch.equal(x, before)
    twin = copy.deepcopy(rekindle.restore(copy.deepcopy(model)))
    xs = [before.clone(), before.clone()]
    for m, x in zip((model, twin), xs, strict=True):
        m(x).sum().backward()
    assert torch.equal(*xs)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True))  # type: ignore[arg-type]


def spoil(monkeypatch: pytest.MonkeyPatch, how: Callable[[list[Any]], None]) -> None:
    """Let planned calls do something to their inputs that plain ones do not."""
    from rekindle.torch.serve.planned import BoundPlan

    call = BoundPlan.__call__

    def spoilt(self: BoundPlan, model: nn.Module, given: Any, *others: Any) -> Any:
        how(given.tensors)
        return call(self, model, given, *others)

    monkeypatch.setattr(BoundPlan, "__call__", spoilt)


def test_what_is_written_into_an_input_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Body(lambda x: x.add_(1)), torch.rand(8, 16)
    plan = planned(model, x)
    late: list[torch.Tensor] = []
    spoil(monkeypatch, late.extend)
    layers = model.layers
    handle = layers[0].weight.register_hook(lambda g: g)
    handle.remove()
    monkeypatch.setattr(
        "rekindle.torch.measure.measured_step._backward",
        lambda value, _: (value.backward(), [t.add_(1) for t in late], late.clear()),
    )
    check = rekindle.verify(model, x, plan)
    assert check.buffers_equal is False
    assert check.gradients_equal
    assert any("first sample[0]" in d for d in check.differences)


def test_gradients_of_inputs_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Body(), torch.rand(8, 16).requires_grad_()
    plan = planned(model, x)
    assert rekindle.verify(model, x, plan).ok
    assert x.grad is None
    spoil(monkeypatch, lambda tensors: tensors[0].register_hook(lambda g: 2 * g) and None)
    check = rekindle.verify(model, x, plan)
    assert check.gradients_equal is False
    assert any("first sample[0]" in d for d in check.differences)


class Noisy(nn.Module):
    """Draws in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
        self.b.weight = self.a.weight  # what two calls give it eager adds up in an order of its own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(torch.tanh(self.b(torch.tanh(self.a(x)))), 0.3)


def test_a_model_that_draws_is_called_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that draws in backward gives the plain numbers as long as nobody draws in between: one call cannot tell."""
    model, x = Noisy(), torch.rand(8, 16)
    plan = planned(model, x)
    assert rekindle.verify(model, x, plan).ok
    from rekindle.torch.serve.planned import BoundPlan

    call = BoundPlan.__call__

    def late(self: BoundPlan, model: nn.Module, given: Any, *others: Any) -> Any:
        state = torch.get_rng_state()
        out = call(self, model, given, *others)
        after = torch.get_rng_state()
        torch.set_rng_state(state)

        class Late(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, y: torch.Tensor) -> torch.Tensor:
                return y.clone()

            @staticmethod
            def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
                torch.rand(8, 16)
                torch.set_rng_state(after) if torch.equal(torch.get_rng_state(), after) else None
                return g

        return Late.apply(out)

    monkeypatch.setattr(BoundPlan, "__call__", late)
    rng = torch.get_rng_state()
    check = rekindle.verify(model, x, plan)
    assert torch.equal(rng, torch.get_rng_state())
    assert not check.ok
    assert any("called twice before backward" in d for d in check.differences)


def test_only_a_model_that_draws_is_called_twice() -> None:
    calls: list[int] = []
    for model, least in ((Body(), 2), (Noisy(), 6)):
        x = torch.rand(4, 16)
        plan = planned(model, x)
        calls.clear()
        steps = check_step(model, x, plan, loss=lambda out: (calls.append(1), out.sum())[1])
        assert steps.ok
        assert len(calls) == least


def test_a_draw_for_a_model_that_cannot_be_called_twice() -> None:
    """Eager refuses it: then there is nothing to compare."""

    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("gate", torch.rand(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.gate.mul_(0.5)
            return nn.functional.dropout(self.layer(x) * self.gate)

    model, x = Once(), torch.rand(4, 8)
    before = model.gate.clone()
    assert rekindle.verify(model, x, planned(model, x)).ok
    assert torch.equal(model.gate, before)


def test_python_and_numpy_numbers_are_as_before() -> None:
    model, x = Body(), torch.rand(4, 16)
    plan = planned(model, x)
    before = random.getstate(), np.random.get_state()[1].tolist()
    check = rekindle.verify(model, x, plan, loss=lambda out: out.sum() * random.random() * np.random.rand())
    assert check.ok  # the same factor each time
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


class Pure(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.sin(x) * x).exp()


def test_a_model_without_parameters() -> None:
    x = torch.rand(8, 16).requires_grad_()
    check = rekindle.verify(Pure(), x, planned(Pure(), x))
    assert check.ok
    assert check.gradients_equal
    assert check.measured_peak_bytes > 0
    assert x.grad is None


def test_losses_of_results_of_every_kind() -> None:
    z = torch.rand(3, dtype=torch.complex64).requires_grad_()
    for result in (z * 2, (z * 2).conj(), {"loss": (z * z).sum()}, [z.abs().double(), z.real.half()]):
        loss = default_loss(result)
        assert not loss.is_complex()
        loss.backward()
    for result in (torch.rand(3) > 0.5, [torch.arange(3)], {"x": None}, torch.rand(3)):
        with pytest.raises(UsageError, match="no result of the model requires grad"):
            default_loss(result)


def test_results_that_are_not_numbers() -> None:
    model = Body(out=lambda h: {"nan": torch.log(h - 2), "inf": h / 0, "first": h.argmax(1), "sign": h > 0})
    x = torch.rand(4, 16)
    assert rekindle.verify(model, x, planned(model, x)).ok


class Fails(Exception):
    pass


def fails(_: Any) -> None:
    raise Fails("no luck")


def untouched(model: nn.Module) -> list[Any]:
    state = [*model.state_dict().values(), *(p.grad for p in model.parameters() if p.grad is not None)]
    return [t.clone() for t in state] + [torch.get_rng_state()]


@pytest.mark.parametrize("where", ["forward", "loss", "backward"])
def test_what_the_module_raises_is_the_cause(where: str) -> None:
    model, x = Body(lambda x: x.add_(1)), torch.rand(4, 16)
    plan = planned(model, x)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before, sample = untouched(model), x.clone()
    how: dict[str, Any] = {}
    if where == "forward":
        model.first = lambda x: (x.add_(1), fails(x))
    elif where == "loss":
        how["loss"] = fails
    else:
        how["loss"] = lambda out: (out.register_hook(fails), out.sum())[1]
    with pytest.raises(RekindleError, match="Fails.*no luck") as e:
        rekindle.verify(model, x, plan, **how)
    assert isinstance(e.value.met if isinstance(e.value, TraceError) else e.value.__cause__, Fails)
    assert all(map(torch.equal, untouched(model), before))
    assert torch.equal(x, sample)
    assert "forward" not in model.__dict__


def test_a_model_on_meta_is_refused() -> None:
    model, x = Body(), torch.rand(4, 16)
    plan = planned(model, x)
    with pytest.raises(UsageError, match="meta.*FakeTensorMode"):
        rekindle.verify(copy.deepcopy(model).to("meta"), x.to("meta"), replace(plan, trace=None))


def test_what_forward_leaves_in_attributes_is_compared() -> None:
    class Keeps(Body):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = torch.tanh(self.layers(x))
            return self.last

    model, x = Keeps(), torch.rand(4, 16)
    plan = planned(model, x)
    assert rekindle.verify(model, x, plan).ok
    assert "last" not in model.__dict__
    model.last = torch.zeros(1).expand(5)  # it cannot be written to
    check = rekindle.verify(model, x, planned(model, x))
    assert check.ok
    assert model.last.shape == (5,)


def test_a_frozen_parameter_that_forward_writes_is_put_back() -> None:
    class Codebook(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.mean = nn.Parameter(torch.zeros(8), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.layer(x)
            self.mean.mul_(0.9).add_(h.detach().mean(0))
            return torch.tanh(h) * self.mean.clone()

    model, x = Codebook(), torch.rand(4, 8)
    assert rekindle.verify(model, x, planned(model, x)).ok
    assert not model.mean.any()


def test_a_loss_is_not_summed_again() -> None:
    """A sum would be one more tensor, and a budget of exactly another method's peak would be missed by its bytes."""
    loss = torch.ones(3, requires_grad=True).square().sum()
    assert default_loss(loss) is loss
    assert default_loss({"loss": loss, "logits": loss.expand(3)}) is loss
