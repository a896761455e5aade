"""Batches of gradients through a planned step (is_grads_batched, vectorize, vmap) are eager's, or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import grad
from torch.autograd.functional import hessian, jacobian

import rekindle
from marks import every
from rekindle import RekindleError

pytestmark = pytest.mark.filterwarnings("ignore:a backward:rekindle.RekindleWarning")
LEAST: dict[str, Any] = {"minimize": "memory", "effort": "quick", "cost": "unit", "progress": False, "cache": False}
X = torch.linspace(-1, 1, 64 * 8).reshape(64, 8)


def mlp(*more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.Softplus(), *more, nn.Linear(32, 4))


class Sine(torch.autograd.Function):
    """torch.func has no rule for it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * ctx.saved_tensors[0].cos()


class OwnFunction(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Sine.apply(x)


def batched(model: nn.Module) -> Any:
    return grad(model(X).mean(0), list(model.parameters()), torch.eye(4), is_grads_batched=True)


def of_jacobian(model: nn.Module) -> Any:
    return (jacobian(lambda x: model(x).mean(0), X, vectorize=True),)


def of_hessian(model: nn.Module) -> Any:
    return (hessian(lambda x: model(x).sum(), X[:4], vectorize=True),)


def by_vmap(model: nn.Module) -> Any:
    y = model(X).mean(0)
    return torch.func.vmap(lambda v: grad(y, list(model.parameters()), v, retain_graph=True))(torch.eye(4))


def twice(model: nn.Module) -> Any:
    x = X.clone().requires_grad_()
    return grad(model(x).mean(0), x, torch.eye(4), is_grads_batched=True, create_graph=True)


def planned(model: nn.Module, sample: torch.Tensor) -> nn.Module:
    return rekindle.checkpoint(copy.deepcopy(model), sample, **LEAST)


@pytest.mark.parametrize("ask", every(2, [batched, of_jacobian, of_hessian, by_vmap]))
def test_a_batch_of_gradients_is_eagers(ask: Callable[[nn.Module], Any]) -> None:
    plain = mlp()
    model = planned(plain, X)
    for found, expected in zip(ask(model), ask(plain), strict=True):
        assert torch.equal(found, expected)
    assert model.forward.last is not None


@pytest.mark.parametrize(
    ("ask", "model", "why"),
    every(
        3,
        [
            (twice, mlp(), "with create_graph=True"),
            (batched, mlp(nn.Dropout(0.2)), "it draws random numbers"),
            (by_vmap, mlp(OwnFunction()), "there it fails: .*setup_context"),
        ],
    ),
)
def test_another_batch_is_refused_by_name(ask: Callable[[nn.Module], Any], model: nn.Module, why: str) -> None:
    with pytest.raises(RekindleError, match=rf"(?s)a batch of gradients.*{why}.*vectorize=False.*rekindle\.restore"):
        ask(planned(model, X))
