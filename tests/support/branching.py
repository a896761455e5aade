"""Models whose forward takes branches on values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import rekindle


class Masked(nn.Module):
    """Leaves a mask out where it masks nothing, as libraries do; and asks one that it makes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)[None]
        if not torch.compiler.is_compiling() and (positions.diff() == 1).all():
            x = x + 1
        whole = not torch.compiler.is_compiling() and bool(mask[:, : x.shape[1]].all())
        for linear in self.linears:
            x = torch.tanh(linear(x))
            if not whole:
                x = x * mask[..., None]
        return x.square().mean()


def masked() -> tuple[Masked, Tensor]:
    torch.manual_seed(0)
    return Masked(), torch.randn(2, 4, 8)


class Linear(nn.Module):
    """A linear layer, and what a function makes of its result and the inputs."""

    def __init__(self, then: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.then = nn.Linear(4, 4), then

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return self.then(self.linear(x), x, ids)


ONES = torch.ones(2, 4, dtype=torch.int64)
PADDED = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


def gradients(model: nn.Module, x: Tensor, mask: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss = model(x, mask)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def ops(graph: rekindle.Graph, what: str) -> int:
    return sum(f"aten.{what}." in op.name and not op.backward for op in graph.ops)


def checked(model: nn.Module, sample: Any) -> bool:
    """Whether a step by a plan for the least memory passes the check."""
    plan = rekindle.plan(rekindle.trace(model, sample), minimize="memory", solver="storages")
    return rekindle.verify(model, sample, plan).ok
