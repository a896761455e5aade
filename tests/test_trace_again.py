"""The graph of a model is the same whatever the process traced before."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import rekindle
from models import context, make

NAMES = ("lstm_fused", "views_of_views", "reparametrised")


def traced_hash(name: str, fake: bool = False) -> str:
    with FakeTensorMode() if fake else torch.random.fork_rng(devices=[]):
        model, sample = make(name)
        with context(name):
            return rekindle.trace(model, sample, target="cpu").graph.hash


@pytest.mark.parametrize("fake", [False, True])
def test_what_was_traced_before_makes_no_difference(fake: bool) -> None:
    alone = {}
    for name in NAMES:
        FakeTensorMode.cache_clear()  # as in a fresh process
        alone[name] = traced_hash(name, fake)
    for _ in range(2):
        assert {name: traced_hash(name, fake) for name in NAMES} == alone


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
