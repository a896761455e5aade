"""Random numbers: a planned step draws what eager draws, when eager draws it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rekindle

SOLVERS = ("none", "chen-sqrt", "feng", "storages")


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 16)


class NoiseForAHook(Base):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        noise = torch.rand_like(h)
        h.register_hook(lambda g: g * noise)
        return self.c(torch.relu(self.b(h)))


class _DrawsForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.noise = torch.rand_like(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * ctx.noise


class _DrawsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        torch.rand(5)  # nobody reads it, and it depends on nothing
        return grad * torch.rand(grad.shape[-1]) + torch.rand_like(grad)


class FunctionThatDrawsInForward(Base):
    def forward(self, x: Tensor) -> Tensor:
        h = _DrawsForward.apply(torch.tanh(self.a(x)))
        return self.c(torch.dropout(_DrawsForward.apply(torch.relu(self.b(h))), 0.3, True))


class FunctionThatDrawsInBackward(Base):
    def forward(self, x: Tensor) -> Tensor:
        h = _DrawsBackward.apply(torch.tanh(self.a(x)))
        return self.c(torch.dropout(_DrawsBackward.apply(torch.relu(self.b(h))), 0.3, True))


class HookThatDraws(Base):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.dropout(torch.tanh(self.a(x)), 0.2, True)
        h.register_hook(lambda g: g * torch.rand_like(g) + torch.rand(32))
        return self.c(torch.relu(self.b(h)))


class Both(Base):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        first, second = torch.rand_like(h), torch.rand(32)
        h.register_hook(lambda g: g * first + torch.rand(32) * second)
        return self.c(torch.dropout(torch.relu(self.b(h)), 0.3, True))


class ReadByNobody(Base):
    def forward(self, x: Tensor) -> Tensor:
        torch.rand(3)
        h = torch.dropout(torch.tanh(self.a(x)), 0.2, True)
        torch.dropout(h, 0.5, True)
        y = self.c(torch.relu(self.b(h)))
        torch.randn_like(y)
        return y


class WithoutGradients(Base):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            mask = torch.dropout(torch.ones_like(x), 0.5, True)
        h = torch.tanh(self.a(x * mask))
        with torch.no_grad():
            torch.dropout(h, 0.5, True)
        return self.c(torch.dropout(torch.relu(self.b(h)), 0.2, True))


class NoiseBuffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", torch.zeros(32))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        self.noise.uniform_()
        last = torch.rand_like(h)
        h.register_hook(lambda g: g * last)
        return self.c(torch.relu(self.b(h)) * self.noise.clone())


KINDS = (NoiseForAHook, FunctionThatDrawsInForward, FunctionThatDrawsInBackward, HookThatDraws, Both, ReadByNobody,
         WithoutGradients, NoiseBuffer)  # fmt: skip


def drawn_between(m: nn.Module, x: Tensor) -> Tensor:
    y = m(x)
    return (y * torch.rand_like(y)).sum()


def twice(m: nn.Module, x: Tensor) -> Tensor:
    return (m(x) + m(2 * x)).sum()


def left(model: nn.Module, step: Callable[[nn.Module, Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Loss, gradients, buffers and RNG state after two steps."""
    torch.manual_seed(3)
    losses = []
    for _ in range(2):
        losses.append(step(model, x))
        losses[-1].backward()
    return [*losses, *(p.grad for p in model.parameters()), *model.buffers(), torch.get_rng_state()]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [drawn_between, twice])
def test_a_planned_step_draws_as_eager_does(kind: type[nn.Module], step: Any, solver: str) -> None:
    torch.manual_seed(0)
    plain, x = kind(), torch.rand(24, 16)
    planned = copy.deepcopy(plain)
    rekindle.apply(planned, rekindle.plan(rekindle.trace(planned, x), minimize="memory", solver=solver))
    theirs, ours = left(plain, step, x), left(planned, step, x)
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
    assert planned.forward.last is not None


def test_fake_and_real_traces_hold_the_same_random_ops() -> None:
    with torch._subclasses.FakeTensorMode():
        fake = rekindle.trace(ReadByNobody(), torch.rand(24, 16))
    real = rekindle.trace(ReadByNobody(), torch.rand(24, 16))
    assert fake.graph.hash == real.graph.hash
