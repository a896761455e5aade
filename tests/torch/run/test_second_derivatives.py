"""Gradients of gradients through a planned step are eager's, and leave no trace of the forward that runs again."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import functional, grad
from torch.nn.utils import spectral_norm

import rekindle
from marks import few, sweep
from rekindle import RekindleError, RekindleWarning

pytestmark = pytest.mark.filterwarnings("ignore:a backward with create_graph:rekindle.RekindleWarning")
LEAST: dict[str, Any] = {"minimize": "memory", "effort": "quick", "cost": "unit", "progress": False, "cache": False}
Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    )


class Tied(nn.Module):
    """One weight has two names and is used six times; forward counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.calls = nn.Linear(8, 8), nn.Linear(8, 8), 0
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for _ in range(3):
            x = self.b(torch.tanh(self.a(x)))
        return x


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x.unflatten(-1, (2, 4)))[0])


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.SiLU(), nn.Dropout(0.3), nn.Linear(32, 1))


def spectral() -> nn.Module:
    return nn.Sequential(spectral_norm(nn.Linear(8, 32)), nn.SiLU(), spectral_norm(nn.Linear(32, 1)))


MODELS = {"mlp": mlp, "tied": Tied, "recurrent": Recurrent, "normed": normed, "spectral": spectral}


def pair(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """(a plain model, its planned twin, an input)."""
    torch.manual_seed(0)
    plain, x = make(), torch.randn(16, 8, requires_grad=True)
    planned = copy.deepcopy(plain)
    return plain, rekindle.checkpoint(planned, x, **LEAST), x


def penalty(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    (g,) = grad(m(x).sum(), x, create_graph=True)
    return (g.norm(dim=1) - 1).square().mean()


def forces(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    energy = m(x).sum()
    return energy.square() + (grad(energy, x, create_graph=True)[0] + 1).square().mean()


def equation(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    u = m(x)
    (first,) = grad(u.sum(), x, create_graph=True)
    (second,) = grad(first[:, 0].sum(), x, create_graph=True)
    return (u.mean(1) * first[:, 1] - second[:, 0]).square().mean()


def of_parameters(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    found = grad(m(x).square().mean(), list(m.parameters()), create_graph=True)
    return torch.stack([g.square().sum() for g in found]).sum()


def twice(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    z = x * 2
    y = m(z)
    return (grad(y.sum(), x, create_graph=True)[0] * grad(y.square().sum(), x, create_graph=True)[0]).sum()


def of_its_own_result(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return penalty(lambda z: m(z + m(z).mean(-1, keepdim=True)), x)  # type: ignore[arg-type]


def under_autocast(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = m(x).float()
    return grad(y.sum(), x, create_graph=True)[0].square().mean() + y.mean()


LOSSES: dict[str, Loss] = {f.__name__: f for f in (penalty, forces, equation, of_parameters, twice, under_autocast)}
CASES = {f"{m}-{k}": (make, loss) for m, make in MODELS.items() for k, loss in LOSSES.items()}


def step(model: nn.Module, loss: Loss, x: torch.Tensor) -> list[Any]:
    torch.manual_seed(7)
    model.zero_grad()
    x = x.detach().requires_grad_()
    value = loss(model, x)
    value.backward()  # type: ignore[no-untyped-call]
    found = [p.grad for p in model.parameters()]
    return [value.detach(), x.grad, *found, *(b.clone() for b in model.buffers()), torch.get_rng_state()]


def equal(a: Any, b: Any) -> bool:
    return a is b or torch.equal(a, b)


@pytest.mark.parametrize("case", few(CASES, ("mlp-equation", "tied-of_parameters", "spectral-penalty")))
def test_second_derivatives_are_eagers(case: str) -> None:
    make, loss = CASES[case]
    plain, planned, x = pair(make)
    for _ in range(2):
        assert all(map(equal, step(plain, loss, x), step(planned, loss, x)))
    assert planned.forward.last is not None  # type: ignore[union-attr]
    assert getattr(planned, "calls", 0) == 0


def test_a_call_on_the_result_of_another_is_right_up_to_rounding() -> None:
    plain, planned, x = pair(mlp)
    for a, b in zip(step(plain, of_its_own_result, x), step(planned, of_its_own_result, x), strict=True):
        assert a is b or torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-7)


def test_hessians_and_products() -> None:
    plain, planned, x = pair(mlp)
    x, v = x.detach()[:2], torch.randn(2, 8)
    for f in (lambda m: functional.hessian(lambda z: m(z).sum(), x), lambda m: functional.jvp(m, x, v)[1]):
        assert torch.equal(f(plain), f(planned))


@sweep
def test_parts_are_differentiated_too() -> None:
    torch.manual_seed(0)
    plain, x = nn.Sequential(mlp(), nn.Linear(1, 8), mlp()), torch.randn(16, 8, requires_grad=True)
    planned = rekindle.checkpoint(copy.deepcopy(plain), x, parts=["0", "2"], **LEAST)
    assert all(map(equal, step(plain, forces, x), step(planned, forces, x)))


def test_it_is_said_once() -> None:
    _, planned, x = pair(mlp)
    with pytest.warns(RekindleWarning, match="takes a plain step's memory"):
        step(planned, penalty, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(planned, penalty, x)


def test_a_changed_weight_is_an_error_as_in_eager() -> None:
    for m in pair(mlp)[:2]:
        x = torch.randn(16, 8, requires_grad=True)
        y = m(x)
        with torch.no_grad():
            m[2].weight.mul_(2)  # type: ignore[index, operator, union-attr]
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            grad(y.sum(), x, create_graph=True)


def test_an_input_that_is_gone_is_an_error() -> None:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 1)

        def forward(self, x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
            return self.down(torch.tanh(self.up(x))) + shift

    torch.manual_seed(0)
    x = torch.randn(16, 8, requires_grad=True)
    m = rekindle.checkpoint(Shift(), (x, torch.ones(1)), **LEAST)
    y = m(x, torch.ones(1))
    with pytest.raises(RekindleError, match="freed.*Keep it in a variable"):
        grad(y.sum(), x, create_graph=True)


def test_nothing_of_a_step_stays() -> None:
    _, planned, x = pair(mlp)
    steps = []
    for whole in (True, False):
        y = planned(x)
        (g,) = grad(y.square().sum(), x, create_graph=True)
        steps.append(weakref.ref(y.grad_fn.step))
        if whole:
            (g.square().sum() + y.sum()).backward()  # type: ignore[no-untyped-call]
        del y, g
    gc.collect()
    assert [s() for s in steps] == [None, None]
