"""A budget that no rewrite keeps is refused in the user's own terms: fractions count from the captured step."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import rekindle
from marks import every
from rekindle import zoo
from rekindle.saying.sizes import format_bytes
from rekindle.torch.trace import Trace


def trace() -> Trace:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4096, 4),
    ]
    return rekindle.trace(nn.Sequential(*layers), torch.rand(32, 3, 32, 32), target="h200", progress=False)


def test_a_budget_is_not_refused_before_rewritten_steps_are_searched_as_was_asked() -> None:
    """Brief searches, by which rewritten steps are compared, end at 0.167 of the activations."""
    traced = trace()
    with pytest.raises(rekindle.InfeasibleBudget):
        rekindle.plan(traced, 0.155, cost="flops", effort="quick", cache=False, progress=False)
    found = rekindle.plan(traced, 0.155, cost="flops", cache=False, progress=False)
    assert found.rewriting is not None
    assert found.activation_peak_bytes <= 0.155 * found.baseline_activation_bytes


def test_a_refusal_names_the_bound_of_every_step_that_was_looked_at() -> None:
    """The rewritten step of the smallest peak has a higher bound than another one."""
    traced = rekindle.trace(*zoo.load("gpt", batch=4), progress=False)
    with pytest.raises(rekindle.InfeasibleBudget) as e:
        rekindle.plan(traced, 0.02, cost="flops", effort="quick", cache=False, progress=False)
    named = [int(n) for n in re.findall(r"no schedule exists below .*?\((\d+) bytes\)", str(e.value))]
    assert e.value.bound_bytes < named[0]
    bound = format_bytes(e.value.bound_bytes)
    assert str(e.value).endswith(f"With other rewrites the bound is {bound}, set by {e.value.op}")


@pytest.mark.parametrize("asked", every(2, [0.01, 1000]))
def test_the_budget_is_named_as_it_was_asked_and_the_advice_works(asked: float) -> None:
    traced = trace()

    def plan(budget: float) -> rekindle.Plan:
        return rekindle.plan(traced, budget, cost="flops", cache=False, progress=False)

    with pytest.raises(rekindle.InfeasibleBudget) as refused:
        plan(asked)
    said = str(refused.value)
    assert "even with ops rewritten to take less memory, no schedule exists below" in said
    assert f"budget {asked:g} of the baseline" in said or f"({asked} bytes)" in said
    advised = re.search(r"budget=([0-9.]+) or more", said)
    assert advised is not None
    found = plan(float(advised[1]) if "." in advised[1] else int(advised[1]))
    assert found.rewriting is not None
    assert found.baseline_peak_bytes == rekindle.plan(traced, 1.0, cache=False, progress=False).baseline_peak_bytes
    if isinstance(asked, float):
        share = found.activation_peak_bytes / found.baseline_activation_bytes
        assert share <= float(advised[1]) <= share + 0.01
