"""Steps of training of models with compiled parts, which are compared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rekindle.torch.compiled import stage
from rekindle.torch.compiled.compiler import compile_graph
from rekindle.torch.tensors.sharded import local


def trained(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Losses and gradients of three steps of training, from one random state."""
    torch.manual_seed(1)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        found += [loss.detach(), *(local(p.grad).clone() for p in model.parameters() if p.grad is not None)]
        optimizer.step()
    return found


def lose_half_of_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the way that saves inputs alone lose half of a gradient."""

    def halved(graph: Any, tensors: Any, settings: dict[str, Any]) -> Any:
        right = compile_graph(graph, tensors, settings)
        if getattr(settings.get("custom_partitioner_fn"), "saves", "") != "inputs":
            return right
        return lambda *given: (y := right(*given), (y + y.detach()) / 2)[1]

    monkeypatch.setattr(stage, "compile_graph", halved)
    monkeypatch.setattr(stage, "_compiled", {})
