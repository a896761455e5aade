"""Autocast around forward alone, as training loops have it: the planned backward runs in the precision that eager's does."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rekindle
from marks import few, sweep
from models import call, loss_of, make
from rekindle.torch.measure.as_before import same


def gradients(name: str, plan: rekindle.Plan | None) -> list[torch.Tensor]:
    model, sample = make(name)
    if plan is not None:
        rekindle.apply(model, plan, on_new_shape="error")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(call(model, sample))
        loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@sweep
@pytest.mark.parametrize("name", few(["gpt", "gpt2"], ["gpt"]))
def test_backward_of_float32_products_inside_an_autocast_operator(name: str) -> None:
    """Attention with dropout computes in float32 here; under autocast its backward would round to bfloat16."""
    expected = gradients(name, None)
    model, sample = make(name)
    with torch.autocast("cpu", torch.bfloat16):
        trace = rekindle.trace(model, sample, target="cpu")
        plans = [rekindle.plan(trace, minimize="memory", solver=s) for s in ("none", "every")]
        checks = [rekindle.verify(model, sample, plan) for plan in plans]
    assert all(check.ok for check in checks)
    for plan in plans:
        got = gradients(name, plan)
        assert all(same(a, b) for a, b in zip(expected, got, strict=True))


class Attention(nn.Module):
    """heads : with a dimension for heads it is one kernel, and without by matmul, whose backward autocast casts."""

    def __init__(self, heads: bool) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x)[(None,) * (1 + self.heads)] for layer in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v)


class Reading(nn.Module):
    """It reads a value, so that it is planned in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention(False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y if y.sum().item() < 1e9 else y * 2  # type: ignore[no-any-return]


def backward_inside(model: nn.Module, x: Tensor, inside: bool) -> list[Tensor | None]:
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(x).float().square().mean()
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            loss.backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize(
    ("make", "told"), [(Attention, True), pytest.param(lambda _: Reading(), True, marks=sweep), (Attention, False)]
)
def test_backward_inside_of_the_block_has_eagers_bits(make: type[Attention], told: bool) -> None:
    plain, x = make(not told), torch.randn(64, 64)
    planned = copy.deepcopy(plain)
    with torch.autocast("cpu", torch.bfloat16):
        rekindle.checkpoint(planned, x, minimize="memory", solver="storages", progress=False)
    lines = []
    for inside in (False, True, True, True, False, False):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ours = backward_inside(planned, x, inside)
        assert all(same(a, b) for a, b in zip(backward_inside(plain, x, inside), ours, strict=True))
        lines.append([str(w.message)[:30] for w in caught])
    once = ["a backward under another autoc"] if told else []
    assert lines == [[], once, [], [], once, []]
    assert rekindle.status(planned).calls == 6


@pytest.mark.parametrize("sizes", [(8, 5), (5, 8), (8, 5, 8, 5), (8, 8, 5, 8)])
def test_calls_with_and_without_a_plan_share_casts(sizes: tuple[int, ...]) -> None:
    """In one block, autocast casts a weight once for all calls. Calls with five rows have no plan."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
    planned, x, found = copy.deepcopy(plain), torch.randn(8, 16), []
    with torch.autocast("cpu", torch.bfloat16):
        rekindle.checkpoint(planned, x, minimize="memory", solver="storages", on_new_shape="plain", progress=False)
    for m in (plain, planned):
        for _ in range(2):
            m.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = sum(((i + 1) * m(x[:n]).float().square().sum() for i, n in enumerate(sizes)), torch.zeros(()))
            loss.backward(retain_graph=True)
            loss.backward()
        found.append([p.grad for p in m.parameters()])
    assert all(map(same, *found))
    assert rekindle.status(planned).calls == 2 * sizes.count(8)
