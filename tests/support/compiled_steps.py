"""Steps of training of models with compiled parts, which are compared."""

from __future__ import annotations

import torch
from torch import nn

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
