"""What forward mutates is written where it lies, once, whatever runs again; where that is not safe, by a copy."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from comparators.compiled import compiled
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import rekindle
from marks import every, few
from rekindle.torch.costs.operator_calls import costs_nothing
from rekindle.torch.measure.as_before import same


class Count(TorchDispatchMode):
    """Kernels that ran; `of` keeps their names."""

    def __init__(self) -> None:
        super().__init__()
        self.of: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [[t for t in torch.utils._pytree.tree_leaves(x) if isinstance(t, torch.Tensor)] for x in (args, out)]
        if not costs_nothing(func, *tensors):
            self.of.append(str(func))
        return out


def convolutions() -> nn.Module:
    layers = [(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(*(m for layer in layers for m in layer))


class Norms(nn.Module):
    """How two norms may be used; `how` names one way."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8, affine=how != "same")
        self.other = nn.BatchNorm1d(8, affine=how != "same")
        self.register_buffer("seen", torch.zeros(8))
        if how == "one storage":
            both = torch.zeros(16)
            self.norm.running_mean, self.other.running_mean = both[:8], both[8:]
        if how == "one buffer":
            self.other.running_mean, self.other.running_var = self.norm.running_mean, self.norm.running_var

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.relu(self.inner(x))
        a = self.norm(h)
        b = self.norm(h.sin()) if self.how == "twice" else self.other(h)
        if self.how == "unread":
            b = h
        if self.how == "read after":
            b = b + self.norm.running_mean
        if self.how == "read before":
            before = self.norm.running_var * 1
            b = b + before
        if self.how == "counted":
            self.seen.add_(1).mul_(2)
            b = b * self.seen.clone()
        if self.how == "counted last":
            b = b * self.seen.clone()
            self.seen += 1
        y = self.outer(torch.relu(a) + torch.tanh(b))
        return (y, self.norm.running_mean) if self.how == "returned" else y


WAYS = ["apart", "twice", "same", "one storage", "one buffer", "unread", "read after", "read before",
        "returned", "counted", "counted last"]  # fmt: skip


@pytest.mark.parametrize("minimize", every(3, [True, False]))
@pytest.mark.parametrize("how", every(4, WAYS))
def test_training_leaves_the_same_buffers(how: str, minimize: bool) -> None:
    torch.manual_seed(0)
    plain = Norms(how)
    with torch.no_grad():
        planned = copy.deepcopy(plain)
    inputs = [torch.randn(16, 8) for _ in range(3)]
    trace = rekindle.trace(planned, inputs[0])
    solver = "storages" if minimize else "none"
    rekindle.apply(planned, rekindle.plan(trace, minimize="memory", solver=solver), on_new_shape="error")
    for pair in zip(inputs, inputs[1:], strict=False):
        for model in (plain, planned):
            # two forwards before the first backward
            results = [model(x) for x in pair]
            results = [r[0] if isinstance(r, tuple) else r for r in results]
            for r in reversed(results):
                r.square().sum().backward()
        for a, b in zip(plain.parameters(), planned.parameters(), strict=True):
            assert same(a.grad, b.grad)
        for (name, a), b in zip(plain.named_buffers(), planned.buffers(), strict=True):
            assert same(a, b), name


def test_what_recomputes_nothing_launches_no_more_than_eager() -> None:
    """New statistics were copied over the old ones: three kernels more for each norm."""
    model, x = convolutions(), torch.rand(2, 4, 8, 8)
    counts = []
    for _ in range(2):
        with Count() as count:
            model(x).sum().backward()
        counts.append(len(count.of))
        for p in model.parameters():
            p.grad = None
        rekindle.apply(model, rekindle.plan(rekindle.trace(model, x), minimize="memory", solver="none"))
    stages = sum(op.backward and op.name.endswith("accumulate|") for op in model.forward.plan.graph.ops)
    # the engine's tokens are made once per stage and way, by the executor
    assert counts[1] - counts[0] <= 2 * stages + 2
    assert not [f for f in count.of if "copy_" in f or "clone" in f]


def test_a_norm_that_runs_again_takes_no_copies() -> None:
    model, x = convolutions(), torch.rand(2, 4, 8, 8)
    plan = rekindle.plan(rekindle.trace(model, x), minimize="memory", solver="storages")
    again = [o for o in plan.schedule.runs if "batch_norm_legit" in plan.graph.ops[o].name]
    assert len(again) > 4
    rekindle.apply(model, plan)
    source = model.forward.source
    assert source.count(" native_batch_norm(") == 4  # once each, in place
    assert "copy_(" not in source
    assert "clone(" not in source
    assert rekindle.verify(model, x).ok


def test_a_large_buffer_that_grows_in_place_takes_no_memory() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 64)
            self.register_buffer("total", torch.zeros(512, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.linear(x)
            self.total += h.detach()
            return h.square().mean()

    model, x = Sum(), torch.randn(512, 64)
    plan = rekindle.plan(rekindle.trace(model, x), minimize="memory", solver="none")
    check = rekindle.verify(model, x, plan)
    assert check.ok
    assert check.measured_peak_bytes == pytest.approx(plan.activation_peak_bytes, rel=0.02)


class Adds(nn.Module):
    """Adds to its buffers in several ways; what they are added, nobody else reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dead, self.aside = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.BatchNorm1d(8)
        for name, shape in (("total", (16, 8)), ("mean", (8,)), ("scaled", (16, 8)), ("gate", (8,))):
            self.register_buffer(name, torch.ones(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        self.total += h.detach().exp()
        self.mean.add_(h.detach().mean(0))
        self.scaled.add_(h.detach(), alpha=0.1)
        self.dead(h)
        with torch.no_grad():
            self.aside(h.sin())
        gate = (self.gate + 1).exp()  # before it changes
        self.gate.add_(1)
        return (h * gate).square().mean()


@pytest.mark.parametrize("solver", few(["none", "storages"], ["storages"]))
def test_buffers_that_forward_adds_to(solver: str) -> None:
    """What is added was to be overwritten by the sum; and a snapshot was read after the mutation as if it were none."""
    torch.manual_seed(0)
    model, x = Adds(), torch.randn(16, 8)
    trace = rekindle.trace(model, x)
    plan = rekindle.plan(trace, minimize="memory", solver=solver)
    assert rekindle.verify(model, x, plan).differences == []
    once = rekindle.plan(trace, minimize="memory", solver="none")
    before = {k: b.clone() for k, b in model.named_buffers()}
    model(x)
    after = {k: b.clone() for k, b in model.named_buffers()}
    for k, b in model.named_buffers():
        b.copy_(before[k])
    with compiled(model, trace, once, 0.5):
        model(x)
    assert all(torch.equal(b, after[k]) for k, b in model.named_buffers())


def test_statistics_of_another_type_say_how_a_norm_rounds() -> None:
    """Without weight and bias, a run without the statistics rounds otherwise."""
    torch.manual_seed(0)
    norms = [m for _ in range(3) for m in (nn.Linear(16, 16), nn.BatchNorm1d(16, affine=False), nn.ReLU())]
    model, x = nn.Sequential(*norms), torch.randn(64, 16)
    for m in model[::3]:
        m.to(torch.bfloat16)
    x = x.bfloat16()
    plan = rekindle.plan(rekindle.trace(model, x), minimize="memory", solver="storages")
    assert plan.overhead > 0
    assert rekindle.verify(model, x, plan).differences == []
