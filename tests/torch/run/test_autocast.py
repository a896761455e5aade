"""Autocast around forward alone, as training loops have it: the planned backward runs in the precision that eager's does."""

from __future__ import annotations

import pytest
import torch

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
