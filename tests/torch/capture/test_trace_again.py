"""The graph of a model is the same whatever the process traced before."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import rekindle
from marks import few, sweep
from models import context, make

NAMES = ("lstm_fused", "views_of_views", "reparametrised")


def traced_hash(name: str, fake: bool = False) -> str:
    with FakeTensorMode() if fake else torch.random.fork_rng(devices=[]):
        model, sample = make(name)
        with context(name):
            return rekindle.trace(model, sample, target="cpu").graph.hash


@pytest.mark.parametrize("fake", few([False, True], [True]))
def test_what_was_traced_before_makes_no_difference(fake: bool) -> None:
    alone = {}
    for name in NAMES:
        FakeTensorMode.cache_clear()  # as in a fresh process
        alone[name] = traced_hash(name, fake)
    for _ in range(2):
        assert {name: traced_hash(name, fake) for name in NAMES} == alone


@sweep
def test_neither_do_fake_tensors_made_elsewhere() -> None:
    def made() -> str:
        torch.manual_seed(0)
        return rekindle.trace(nn.GRU(8, 8), torch.rand(3, 2, 8), target="cpu").graph.hash

    FakeTensorMode.cache_clear()
    alone = made()
    with FakeTensorMode():
        out, _ = nn.GRU(8, 8)(torch.rand(3, 2, 8))
        out.sum().backward()
    assert made() == alone


@pytest.mark.filterwarnings("error::rekindle.RekindleWarning")
@pytest.mark.parametrize("check", [True, False])
def test_a_planned_module_that_somebody_wrapped_is_planned_again(check: bool) -> None:
    plain = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    planned: Any = copy.deepcopy(plain)
    x = torch.randn(4, 8)
    how: dict[str, Any] = {"solver": "storages", "check": check, "progress": False}
    rekindle.checkpoint(planned, x, minimize="memory", **how)
    first = planned.forward
    planned.forward = lambda *args: 2 * first(*args)
    graph = rekindle.trace(planned, x, target="cpu").graph
    assert graph.hash != first.plan.graph_hash
    assert first.last is None
    rekindle.checkpoint(planned, x, max_overhead=0.5, **how)
    assert first.last is None  # nor did the check run by the old plan
    assert planned.forward.plan.graph_hash == graph.hash
    results = []
    for m, factor in ((planned, 1), (plain, 2)):
        y = factor * m(x)
        y.sum().backward()
        results.append([y.detach(), *(p.grad for p in m.parameters())])
    assert all(map(torch.equal, *results))
    assert (planned.forward.last is not None, first.last) == (True, None)
    rekindle.restore(planned)
    assert torch.equal(planned(x), 2 * plain(x))
    assert first.last is None


def test_a_wrapped_module_stays_planned_where_it_cannot_be_planned_again() -> None:
    planned: Any = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    x = torch.randn(4, 8)
    rekindle.checkpoint(planned, x, minimize="memory", solver="storages", progress=False)
    first = planned.forward
    planned.forward = lambda *args: 2 * first(*args)
    with pytest.raises(rekindle.InfeasibleBudget):
        rekindle.checkpoint(planned, x, "1KiB", solver="storages", progress=False)
    planned(x).sum().backward()
    assert first.last is not None
