"""Random numbers: a planned step draws what eager draws, when eager draws it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import rekindle
from marks import few
from rekindle import TraceError

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


@pytest.mark.parametrize("solver", few(SOLVERS, ["storages"]))
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


def seeded(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):  # the first line to be named
        torch.manual_seed(0)
        return torch.rand_like(x)


def kept_state(x: Tensor) -> Tensor:
    state = torch.get_rng_state()  # the second line to be named
    noise = torch.rand_like(x)
    torch.set_rng_state(state)
    return noise


def seeded_directly(x: Tensor) -> Tensor:
    torch.default_generator.manual_seed(0)
    return torch.rand_like(x)


def seeded_numpy(x: Tensor) -> Tensor:
    np.random.seed(5)
    return x * float(np.random.rand())


def of_its_own(x: Tensor) -> Tensor:
    return torch.rand(x.shape, generator=torch.Generator().manual_seed(0))


class With(nn.Module):
    def __init__(self, noise: Any):
        super().__init__()
        self.a, self.b, self.noise = nn.Linear(16, 16), nn.Linear(16, 16), noise

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x) * self.noise(x))


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (seeded, "test_random_order.py.*the first line to be named"),
        (kept_state, "test_random_order.py.*the second line to be named"),
        (seeded_directly, "state of torch's random generator"),
        (of_its_own, "rand.generator.*default generator"),
        (seeded_numpy, "NumPy's random generator"),
    ],
)
def test_what_else_is_done_to_generators_is_refused(noise: Any, words: str) -> None:
    model, x = With(noise), torch.rand(4, 16)
    before = torch.get_rng_state(), str(np.random.get_state())
    for _ in range(2):  # in the same words
        with pytest.raises(TraceError, match=f"(?s){words}"):
            rekindle.trace(model, x)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == str(np.random.get_state())
    assert isinstance(torch.random.default_generator, torch.Generator)


@pytest.mark.parametrize("reentrant", [False, True])
def test_torch_checkpoint_may_keep_the_state(reentrant: bool) -> None:
    class Checkpointed(Base):
        def forward(self, x: Tensor) -> Tensor:
            part = lambda h: torch.dropout(torch.tanh(self.b(h)), 0.5, True)  # noqa: E731
            return self.c(checkpoint(part, self.a(x), use_reentrant=reentrant))

    plain, x = Checkpointed(), torch.rand(24, 16)
    planned = copy.deepcopy(plain)
    rekindle.apply(planned, rekindle.plan(rekindle.trace(planned, x), minimize="memory", solver="feng"))
    theirs, ours = left(plain, drawn_between, x), left(planned, drawn_between, x)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
