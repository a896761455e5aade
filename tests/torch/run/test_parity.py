"""Every model, every solver: the numbers of eager training bit for bit, within the peak that was promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rekindle
from marks import few
from models import HF, MODELS, call, context, loss_of, make
from rekindle import Plan, Schedule, Trace, simulate
from rekindle.kernels.modes import HOLD, KEEP, TRANSIENT
from rekindle.structure.saved import Dropping
from rekindle.torch.measure.memory import allocator_peak
from rekindle.torch.run import stages

SOLVERS = ("none", "every", "chen-sqrt", "feng")
SLOW_SOLVER_ON = ("cnn", "gpt", "unet", "frozen_backbone", "t5")  # auto takes seconds
# one of each kind: the others in the sweep
OF_EACH_KIND = ("cnn", "random_layers", "frozen_backbone", "gpt", "lstm_fused", "nested_results", "own_function",
                "writes_over_its_input", "half_precision", "hooks_inside", "gpt2")  # fmt: skip


def random_plan(trace: Trace, seed: int) -> Plan:
    """A plan that keeps, holds and remakes values at random: what no solver would ask for."""
    like = rekindle.plan(trace, 1.0, solver="none")
    dropping = Dropping(trace.graph)
    modes = dropping.all(KEEP)
    rng = np.random.default_rng(seed)
    modes[dropping.candidates] = rng.choice([TRANSIENT, HOLD, KEEP], size=len(dropping.candidates), p=[0.1, 0.4, 0.5])
    runs = dropping.runs(modes)
    assert runs is not None
    schedule = stages.finish(trace.lowered)(trace.graph, Schedule.from_runs(trace.graph, runs, "random"))
    judged = simulate(trace.graph, schedule)
    peak = judged.peak_bytes - trace.graph.resident_bytes
    return replace(like, schedule=schedule, peak_bytes=judged.peak_bytes, activation_peak_bytes=peak, trace=trace)


def quick_plans(trace: Trace) -> list[Plan]:
    found = [rekindle.plan(trace, minimize="memory", solver=s) for s in SOLVERS]
    return found + [random_plan(trace, seed) for seed in (1, 2)]


def portfolios_plans(trace: Trace) -> list[Plan]:
    return [rekindle.plan(trace, max_overhead=x, time_limit=1.0) for x in (0.05, 0.5)]


def train(model: nn.Module, sample: Any, name: str, steps: int = 3) -> list[torch.Tensor]:
    """Everything a few optimizer steps leave: losses, gradients, buffers, weights, RNG state."""
    left: list[torch.Tensor] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        for i in range(steps):
            with context(name):
                loss = loss_of(call(model, sample))
            loss.backward()
            left += [loss.detach()]
            left += [torch.zeros(()) if p.grad is None else p.grad.clone() for p in model.parameters()]
            left += [torch.tensor(p.grad is None) for p in model.parameters()]
            optimizer.step()
            optimizer.zero_grad(set_to_none=i % 2 == 0)
        left += [
            *(b.clone() for b in model.buffers()),
            *(p.detach() for p in model.parameters()),
            torch.get_rng_state(),
        ]
    return left


def peak_of(model: nn.Module, sample: Any, name: str) -> int:
    """Measured activation peak of a step that accumulates into gradients that exist."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    with context(name):
        return allocator_peak(lambda: loss_of(call(model, sample)).backward()).peak_bytes


@pytest.mark.parametrize("name", few([*MODELS, *HF], OF_EACH_KIND))
def test_training_is_the_same_bit_for_bit(name: str) -> None:
    expect_parity(name, quick_plans)


@pytest.mark.parametrize("name", few(SLOW_SOLVER_ON, ["cnn"]))
def test_training_by_the_portfolios_plans_is_the_same_bit_for_bit(name: str) -> None:
    expect_parity(name, portfolios_plans)


def expect_parity(name: str, plans: Callable[[Trace], list[Plan]]) -> None:
    expected = train(*make(name), name)
    with context(name):
        trace = rekindle.trace(*make(name))
    for plan in plans(trace):
        model, sample = make(name)
        planned = rekindle.apply(model, plan, on_new_shape="error")
        got = train(planned, sample, name)
        wrong = [i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a.dtype != b.dtype or not same(a, b)]
        assert not wrong, f"{plan.solver}: {len(wrong)} of {len(got)} tensors differ, first {wrong[0]}"
        measured = peak_of(planned, sample, name)
        assert measured == pytest.approx(plan.activation_peak_bytes, rel=0.02), plan.solver


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a, b) or torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.parametrize("name", few(SLOW_SOLVER_ON, ["cnn"]))
def test_a_budget_in_bytes_is_kept(name: str) -> None:
    """Also by a loop that holds on to the results."""
    model, sample = make(name)
    trace = rekindle.trace(model, sample)
    graph = trace.graph
    for share in (0.8, 0.6):
        budget = graph.resident_bytes + int(share * rekindle.plan(trace, 1.0, solver="none").activation_peak_bytes)
        try:
            plan = rekindle.plan(trace, budget, time_limit=1.0)
        except rekindle.InfeasibleBudget as refused:
            budget = refused.smallest_peak
            plan = rekindle.plan(trace, budget, time_limit=1.0)
        rekindle.apply(model, plan)
        assert graph.resident_bytes + peak_of(model, sample, name) <= budget

        def holding() -> None:
            result = call(model, sample)
            loss_of(result).backward()

        assert graph.resident_bytes + allocator_peak(holding).peak_bytes <= budget
