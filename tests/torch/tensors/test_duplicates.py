"""Ops that do the same to the same tensors run once, and nothing else is merged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import rekindle
from marks import sweep


class Cell(nn.Module):
    """Several edges read one input and begin alike, as in a searched cell."""

    def __init__(self, edge: Callable[[torch.Tensor], torch.Tensor], edges: int = 4) -> None:
        super().__init__()
        self.edge = edge
        self.linears = nn.ModuleList(nn.Linear(32, 32) for _ in range(edges))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linears[0](x)
        return sum(linear(self.edge(x)) for linear in self.linears[1:]).square().mean()  # type: ignore[union-attr]


class Slopes(Cell):
    """Each edge has a slope of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linears[0](x)
        edges = (nn.functional.leaky_relu(x, 0.1 * i) for i in range(1, 4))
        return sum(linear(h) for linear, h in zip(self.linears[1:], edges, strict=True)).square().mean()  # type: ignore[union-attr]


def count_ops(model: nn.Module, x: torch.Tensor, what: str, **how: Any) -> int:
    trace = rekindle.trace(model, x, **how)
    assert rekindle.verify(model, x, rekindle.plan(trace, minimize="memory", solver="storages")).ok
    return sum(what in op.name and not op.backward for op in trace.graph.ops)


def test_the_same_op_on_the_same_tensor_runs_once() -> None:
    x = torch.randn(16, 32)
    assert count_ops(Cell(torch.relu), x, "relu") == 1
    assert count_ops(Cell(lambda h: torch.tanh(h.view(4, 4, 32)).view(16, 32)), x, "tanh") == 1
    assert count_ops(Cell(lambda h: h * 2 if h.sum().shape else h * 2.0), x, "mul") == 1


def test_what_differs_runs_apart() -> None:
    x = torch.randn(16, 32)
    assert count_ops(Slopes(torch.relu), x, "leaky") == 3
    assert count_ops(Cell(lambda h: nn.functional.dropout(h, 0.5)), x, "dropout") == 3


def test_two_results_stay_two_tensors() -> None:
    class Twin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            h = self.linear(x)
            return torch.sigmoid(h).view(-1), torch.sigmoid(h).view(-1)

    model, x = Twin(), torch.rand(2, 4)
    rekindle.apply(model, rekindle.plan(rekindle.trace(model, x), minimize="memory", solver="storages"))
    a, b = model(x)
    with torch.no_grad():
        a.zero_()
    assert b.min() > 0


def test_a_marked_module_shares_nothing() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.left, self.right = nn.Linear(32, 32), nn.Sigmoid(), nn.Sigmoid()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.linear(x)
            return (self.left(h) * self.right(h)).mean()

    x = torch.randn(16, 32)
    assert count_ops(Two(), x, "sigmoid") == 1
    assert count_ops(Two(), x, "sigmoid", must_save=["right"]) == 2


@sweep
def test_unknown_ops_run_as_often_as_they_are_called() -> None:
    @torch.library.custom_op("rekindle_tests::noisy", mutates_args=())
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)  # and does not say that it is random

    noisy.register_fake(torch.empty_like)
    noisy.register_autograd(lambda ctx, g: g)

    model, x = Cell(noisy), torch.randn(16, 32)
    plan = rekindle.plan(rekindle.trace(model, x), minimize="memory", solver="none")
    assert rekindle.verify(model, x, plan).ok
