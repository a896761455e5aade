"""A forward whose first call deletes a tensor or a submodule is planned for the later calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rekindle
from marks import every

PLAN: dict[str, Any] = {"budget": 0.7, "effort": "quick", "cost": "unit", "progress": False, "cache": False}


class Net(nn.Module):
    """extra : sets what the first call uses, of the name "once", and deletes."""

    def __init__(self, extra: Callable[[nn.Module], None]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))))
        extra(self)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        if hasattr(self, "once"):
            y = self.once(y).detach() + y if callable(self.once) else y * self.once
            del self.once
        return y


EXTRAS: dict[str, Callable[[nn.Module], None]] = {
    "buffer": lambda m: m.register_buffer("once", torch.full((16,), 2.0)),
    "attribute": lambda m: setattr(m, "once", torch.full((16,), 2.0)),
    "submodule": lambda m: setattr(m, "once", nn.Linear(16, 16)),
}


@pytest.mark.parametrize("kind", every(3, EXTRAS))
def test_what_the_first_call_deletes(kind: str) -> None:
    torch.manual_seed(0)
    plain, x = Net(EXTRAS[kind]), torch.randn(64, 16)
    model = copy.deepcopy(plain)
    rekindle.checkpoint(model, x, **PLAN)
    assert model.once is not None
    assert model.state_dict().keys() == plain.state_dict().keys()
    for k in range(3):
        for m in (model, plain):
            m.zero_grad()
        ours, theirs = model(x), plain(x)
        assert torch.equal(ours, theirs)
        assert (model.forward.last is not None) == (k > 0)
        for y in (ours, theirs):
            y.square().mean().backward()
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            assert p.grad is q.grad is None or torch.equal(p.grad, q.grad)
