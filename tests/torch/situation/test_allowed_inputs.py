"""Unusual models, samples, settings and options that are allowed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rekindle
from marks import every
from refused import Net, Scale, a_trace, batch, left_alone, planned
from rekindle import UsageError
from rekindle.torch import accept
from rekindle.torch.serve.planned import PlannedForward


# -- all that is allowed -----------------------------------------------------------------------------------------------
class Pair(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, dtype=dtype)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
        return self.layer(x) * scale + (0 if y is None else self.layer(y))


ALLOWED: dict[str, Callable[[], Any]] = {
    "no parameters, input requires grad": lambda: (Scale(), batch().requires_grad_()),
    "complex": lambda: (Pair(torch.complex64), batch().to(torch.complex64)),
    "a complex result": lambda: (Net(lambda y: torch.complex(y, y)), batch()),
    "the same tensor twice": lambda: (Pair(), (batch(),) * 2),
    "views of one tensor": lambda: (Pair(), tuple(torch.rand(8, 4).split(4))),
    "no rows": lambda: (Pair(), torch.rand(0, 4)),
    "None and numbers among the arguments": lambda: (Pair(), (batch(), None, 2.0)),
    "a list": lambda: (Pair(), [batch(), batch()]),
    "planned already": lambda: (planned(Pair()), batch()),
    "some frozen": lambda: (nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)), batch()),
}


@pytest.mark.parametrize("make", every(4, ALLOWED.values()), ids=ALLOWED)
def test_unusual_and_allowed(make: Callable[[], Any]) -> None:
    model, sample = make()
    assert rekindle.checkpoint(model, sample, 1.0, solver="chen-sqrt") is model
    assert isinstance(model.forward, PlannedForward)


@contextlib.contextmanager
def default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SETTINGS: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "default device": lambda: default_device("meta"),
    "default dtype": lambda: default_dtype(torch.float64),
    "anomaly mode": lambda: torch.autograd.set_detect_anomaly(True),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("setting", every(3, SETTINGS.values()), ids=SETTINGS)
def test_planned_and_checked_under_any_setting(setting: Callable[[], Any]) -> None:
    model, x = Net(), batch()
    with setting(), left_alone(nn.Identity(), x):
        rekindle.checkpoint(model, x, 1.0, solver="chen-sqrt")
    with contextlib.nullcontext() if setting is not SETTINGS["default device"] else setting():
        model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_options_of_other_number_types_are_as_good() -> None:
    found = rekindle.plan(a_trace(), 1.0, solver="chen-sqrt", seed=np.int64(3), time_limit=np.float32(5))
    assert found.solver == "chen-sqrt"
    optimizer = torch.optim.SGD(Net().parameters(), 0.1)
    for given in (None, optimizer, torch.optim.AdamW, "adamw"):
        accept.optimizer(given)


def test_a_bare_string_is_one_name() -> None:
    model, x = Net(), batch()
    one, same = rekindle.trace(model, x, must_save="norm"), rekindle.trace(model, x, must_save=["norm"])
    assert one.options.must_save == same.options.must_save == ("norm",)
    assert one.graph.hash == same.graph.hash != rekindle.trace(model, x).graph.hash


def test_a_second_name_is_told_the_first() -> None:
    model = nn.Sequential(first := nn.Linear(4, 4), first)
    with pytest.raises(UsageError, match="'1' is a second name of the submodule '0'"):
        rekindle.trace(model, batch(), must_save=["1"])
