"""A tensor that equal ops read: eager adds up one gradient for each of them, though the captured step runs them once."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import rekindle
from marks import every
from rekindle.torch.measure.as_before import same


class Net(nn.Module):
    """`depth` layers, each of which reads act(x) anew, as the layers of a decoder cast what the encoder made."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor], depth: int = 3):
        super().__init__()
        self.act, self.layers = act, nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        for layer in self.layers:
            y = layer(y) + self.act(x)
        return y


ACTS = {
    "once": torch.tanh,
    "nested": lambda x: x.cos().exp(),
    "of a view": lambda x: x.view(2, -1).tanh().view(-1, 16),
    "cast": lambda x: x.bfloat16().float(),
}


@pytest.mark.parametrize("act", every(2, ACTS.values()), ids=ACTS)
def test_gradients_add_up_in_eagers_order(act: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    plain = Net(act)
    planned = copy.deepcopy(plain)
    x = torch.randn(32, 16)
    rekindle.checkpoint(planned, x.clone().requires_grad_(), minimize="memory", progress=False)
    found = []
    for model in (plain, planned):
        leaf = x.clone().requires_grad_()
        start = leaf * 1.5
        (model(start) + start.square() + model(start)).square().sum().backward()
        found.append([leaf.grad, *(p.grad for p in model.parameters())])
    assert planned.forward.last is not None
    assert all(map(same, *found))
