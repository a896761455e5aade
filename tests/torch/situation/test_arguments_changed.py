"""Forwards that change what they are given, draw from generators of their own, or compute with what they stored."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import rekindle
from rekindle import RekindleWarning, TraceError

X = torch.randn(16, 8)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.generator: Any = None
        self.history: list[Tensor] = []

    def compute(self, x: Tensor) -> Tensor:
        return torch.tanh(self.b(torch.tanh(self.a(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x)


class Draws(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.compute(x)
        return 2 * h if self.generator.random() < 0.5 else h


class Counts(Net):
    def forward(self, x: Tensor, where: Any) -> Tensor:
        where.count += 1
        return self.compute(x)


class Where:
    def __init__(self) -> None:
        self.count = 0


class AddsAllBefore(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.compute(x)
        self.history.append(h.detach())
        return h + sum(self.history)


class Keeps(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.compute(x)
        self.history.append(h.detach())
        return h


class Owner:
    generator = random.Random(3)


class DrawsFromAGlobal(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x) * Owner.generator.random()


@pytest.mark.parametrize("kind", [random.Random, np.random.default_rng, np.random.RandomState])
def test_a_generator_of_its_own_is_named_and_put_back(kind: Any) -> None:
    model = Draws()
    model.generator = kind(0)
    first = kind(0).random()
    with pytest.raises(TraceError, match=r"draws from a random generator of its own \(generator\)"):
        rekindle.trace(model, X)
    assert model.generator.random() == first


def test_an_object_that_forward_changes_is_named() -> None:
    where = Where()
    with pytest.warns(RekindleWarning, match="changes the argument where; planned steps do not"):
        rekindle.trace(Counts(), (X, where))
    assert where.count == 0


def test_an_argument_that_forward_only_reads_is_not_named(recwarn: pytest.WarningsRecorder) -> None:
    class Reads(Net):
        def forward(self, x: Tensor, more: dict[str, Any], where: Any) -> Tensor:
            return self.compute(x) + sum(more["these"]) * where.count

    rekindle.trace(Reads(), (X, {"these": [X, 2 * X]}, Where()))
    assert not [w for w in recwarn if isinstance(w.message, RekindleWarning)]


def test_what_forward_stored_before_and_computes_with() -> None:
    with pytest.raises(TraceError, match="the result of forward depends on history"):
        rekindle.trace(AddsAllBefore(), X)
    with pytest.warns(RekindleWarning, match="changes the attribute history; planned steps do not"):
        rekindle.trace(keeps := Keeps(), X)
    assert keeps.history == []


def test_hooks_on_all_modules_see_the_users_modules_alone() -> None:
    seen = []
    handle = register_module_forward_hook(lambda m, args, out: seen.append(type(m)) or out * 1.0)
    try:
        trace = rekindle.trace(Net(), X)
    finally:
        handle.remove()
    assert {k.__module__ for k in seen} <= {__name__, "torch.nn.modules.linear"}
    assert trace.graph.ops


class Remembers(Net):
    """Forward puts other tensors into a dict that has as many."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.compute(x)
        self.seen: dict[str, Tensor] = getattr(self, "seen", {})
        self.seen["h"] = h
        return h


def test_a_dict_that_gets_other_tensors_is_named() -> None:
    model = Remembers()
    model(X)
    with pytest.warns(RekindleWarning, match="changes the attribute seen; planned steps do not"):
        rekindle.trace(model, X)
