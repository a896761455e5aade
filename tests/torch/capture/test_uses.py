"""Parameters that forward uses more than once: one backward through several calls adds up as eager does."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rekindle
from marks import every, sweep
from rekindle.torch.lowering.gradient_additions import additions

HOW: dict[str, Any] = {"solver": "storages", "time_limit": 0.5}


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.norm, self.out = nn.GRUCell(8, 16), nn.LayerNorm(16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 16)
        for t in range(x.shape[1]):
            h = self.norm(self.cell(x[:, t], h))
        return self.out(h)


class Interleaved(nn.Module):
    """Two names of one weight, each used twice, in turns: what comes to the weight comes in that order."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.l, self.b = nn.Embedding(32, 16), nn.Linear(16, 16), nn.Linear(16, 32, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.l(self.a(x)) + self.a(x + 1))
        return self.b(torch.tanh(self.l(self.b(torch.tanh(self.l(h)))[..., :16]))).square().mean()


class PassedOn(nn.Module):
    """The gradient of a sum that is used twice goes to both summands as it is: they get one gradient, not two."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.c = nn.Parameter(torch.randn(64)), nn.Buffer(torch.randn(64))

    def forward(self, x: Tensor) -> Tensor:
        w = self.w + self.c
        return (torch.tanh(x * w) * w).sum(1)


def floats() -> Tensor:
    return torch.randn(5, 4, 8)


def tokens() -> Tensor:
    return torch.randint(0, 31, (4, 7))


def pair(model: nn.Module, x: Tensor) -> tuple[nn.Module, nn.Module]:
    eager = copy.deepcopy(model)
    return eager, rekindle.checkpoint(model, x, minimize="memory", **HOW)


def gradients(model: nn.Module, xs: list[Tensor], also: Callable[[], Tensor] = lambda: torch.zeros(())) -> list[Any]:
    model.zero_grad()
    loss = also()
    for i, x in enumerate(xs):
        loss = loss + model(x).square().sum() * (i + 1)
    loss.backward(retain_graph=True)
    loss.backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def equal(a: list[Any], b: list[Any]) -> bool:
    return all(x is y if x is None or y is None else torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("kind", "sample"), every(2, [(Cells, floats), (Interleaved, tokens)]))
def test_several_calls_before_one_backward(kind: type[nn.Module], sample: Callable[[], Tensor]) -> None:
    torch.manual_seed(0)
    x = sample()
    eager, planned = pair(kind(), x)
    assert additions(planned.forward.plan.trace.lowered.captured)  # type: ignore[union-attr]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for xs in ([x], [x, x], [x, sample(), sample()], [x, x[:3]], [x[:3], x, x[:2]]):
            assert equal(gradients(planned, xs), gradients(eager, xs))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 32), nn.Linear(8, 32), nn.Linear(32, 8)
        self.up.weight = self.gate.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("goal", [{"minimize": "memory"}, {"max_overhead": 0.0}])
def test_uses_outside_of_the_planned_module(goal: dict[str, Any]) -> None:
    """What the planned block gives to its input and its weights is added to what came to them before, part by part."""
    torch.manual_seed(0)
    eager, x = Gated(), torch.randn(64, 8, requires_grad=True)
    planned = rekindle.checkpoint(copy.deepcopy(eager), x, **goal, **HOW)
    found = []
    for m in (eager, planned):
        before, after = 0.1 * m.gate.weight.square().sum(), torch.tanh(x)  # type: ignore[union-attr, operator]
        loss = (after + m(x + after) + x + m(x)).square().sum() + before + m.up.weight.abs().sum()  # type: ignore[union-attr, operator]
        loss.backward()
        found.append([x.grad, *(p.grad for p in m.parameters())])
        x.grad = None
    assert equal(*found)


@sweep
def test_gradients_of_inputs_that_two_calls_share() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 6, 8, requires_grad=True)
    eager, planned = pair(Cells(), x)
    found = []
    for m in (eager, planned):
        (m(x).square().sum() + 2 * m(x).square().sum()).backward()
        found.append(x.grad)
        x.grad = None
    assert torch.equal(*found)


@sweep
def test_two_planned_modules_that_share_a_weight() -> None:
    torch.manual_seed(0)
    x = tokens()
    eager = nn.ModuleList([Interleaved(), Interleaved()])
    eager[1].a.weight = eager[1].b.weight = eager[0].a.weight
    planned = copy.deepcopy(eager)
    for m in planned:
        rekindle.checkpoint(m, x, minimize="memory", **HOW)
    for m in (eager, planned):
        sum(part(x) * (i + 1) for i, part in enumerate(m)).backward()  # type: ignore[union-attr]
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(eager.parameters(), planned.parameters(), strict=True))


def test_a_gradient_that_is_passed_on_stays_whole() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 64)
    eager, planned = pair(PassedOn(), x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for xs in ([x], [x, 2 * x]):
            ours = gradients(planned, xs, lambda: planned.w.square().sum())  # type: ignore[union-attr, operator]
            assert equal(ours, gradients(eager, xs, lambda: eager.w.square().sum()))  # type: ignore[union-attr, operator]


class Wrapped(torch.autograd.Function):
    """Gives back two gradients for one use of a weight, added up where autograd notes additions of several uses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.tanh(x * w) * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        with torch.enable_grad():
            x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
            return torch.autograd.grad(torch.tanh(x * w) * w, (x, w), g)


class Inside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(64))

    def forward(self, x: Tensor) -> Tensor:
        return Wrapped.apply(x, self.w.expand(32, 64)).sum(1) + Wrapped.apply(x, self.w.expand(32, 64)).sum(1)


def test_sums_inside_of_a_function_of_its_own() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 64)
    eager, planned = pair(Inside(), x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for xs in ([x], [x, 2 * x]):
            assert equal(gradients(planned, xs), gradients(eager, xs))
