"""Parameters of classes, and with attributes, of the user's own: frozen 4-bit weights. Tensors that objects hold."""

from __future__ import annotations

import copy
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rekindle


class Packed(nn.Parameter):
    """A frozen weight that knows its scales."""

    def __new__(cls, data: torch.Tensor, requires_grad: bool = False, state: Any = None) -> Packed:
        made = torch.Tensor._make_subclass(cls, data, requires_grad)
        made.state = state
        return made

    def __deepcopy__(self, memo: Any) -> Packed:
        return Packed(self.data.clone(), self.requires_grad, copy.deepcopy(self.state, memo))

    @property
    def scale(self) -> torch.Tensor:
        return self.state.scale


class Unpacks(torch.autograd.Function):
    """Reads the state in forward and in backward, and writes to what it makes of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, state: Any) -> torch.Tensor:
        ctx.w, ctx.state = w, state
        return F.linear(x, w.float() * unpacked(state))

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g @ (ctx.w.float() * unpacked(ctx.state)), None, None


def unpacked(state: Any) -> torch.Tensor:
    scale = state.scale * 2
    scale += state.offset
    return scale[:, None]


class Adapted(nn.Module):
    def __init__(self, into: int, out: int, how: str):
        super().__init__()
        state = types.SimpleNamespace(scale=torch.rand(out), offset=torch.rand(()))
        self.how, packed = how, torch.randint(-7, 8, (out, into), dtype=torch.int8)
        self.weight = nn.Parameter(packed, requires_grad=False) if how == "plain" else Packed(packed, state=state)
        if how == "plain":
            self.weight.state = state
        self.scale = state.scale if how == "also an attribute" else None
        self.own = nn.Linear(into, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "function":
            return Unpacks.apply(x, self.weight, self.weight.state) + self.own(x)
        if self.how != "plain":
            assert isinstance(self.weight, Packed)
            assert self.weight.scale is self.weight.state.scale
        return F.linear(x, self.weight.float() * self.weight.state.scale[:, None]) + self.own(x)


def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    result = model(x)
    result.square().mean().backward()
    return [result.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("how", ["plain", "class", "also an attribute", "function"])
def test_attributes_and_classes_are_there_and_a_change_is_seen(how: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Adapted(8, 32, how), nn.GELU(), Adapted(32, 8, how))
    plain, x = copy.deepcopy(model), torch.randn(64, 8)
    if how == "plain":  # a plain parameter's copy has no attributes
        for a, b in zip(plain, model, strict=True):
            if isinstance(a, Adapted):
                a.weight.state = b.weight.state
    rekindle.checkpoint(model, x, minimize="memory", solver="storages", strict=True, progress=False)
    assert all(map(torch.equal, step(model, x), step(plain, x)))
    for m in (model, plain):
        m[0].weight.state = types.SimpleNamespace(scale=torch.arange(32.0), offset=torch.ones(()))
    assert all(map(torch.equal, step(model, x), step(plain, x)))
    assert rekindle.status(model).calls == 2
    assert not isinstance(nn.Linear(1, 1).weight, Packed)
