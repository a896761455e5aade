"""The one call of the module before any planning: what it tells, and that nothing of it remains."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import rekindle
from refused import Net, a_plan, batch, left_alone, never, plan_it  # noqa: F401  never is a fixture of every test
from rekindle import TraceError, UsageError
from rekindle.torch.measure import probe as probing


# -- the profiler ------------------------------------------------------------------------------------------------------
def test_a_running_profiler_is_found_at_the_start() -> None:
    model, x = Net(), batch()
    a_plan()
    with torch.autograd.profiler.profile():
        with left_alone(model, x), pytest.raises(UsageError, match="profiler.*check=False"):
            plan_it(model, x)
        with left_alone(model, x), pytest.raises(UsageError, match="profiler"):
            rekindle.verify(model, x, a_plan())
        rekindle.checkpoint(model, x, 1.0, solver="chen-sqrt", check=False)


# -- the one call beforehand -------------------------------------------------------------------------------------------
class Fails(nn.Module):
    def __init__(self, error: Exception):
        super().__init__()
        self.layer, self.error = nn.Linear(4, 4), error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error  # the line to be named


def test_the_failure_of_the_module_itself_is_named_with_its_line() -> None:
    model, x = Fails(KeyError("mask")), batch()
    with left_alone(model, x), pytest.raises(TraceError, match="itself fails on this sample: KeyError: 'mask'") as e:
        plan_it(model, x)
    line = next(i for i, s in enumerate(Path(__file__).read_text().splitlines(), 1) if "# the line to be named" in s)
    assert f"{__file__}:{line}" in str(e.value)
    assert e.value.__cause__ is model.error


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("none left"), MemoryError(), RuntimeError("can't allocate memory")]
)
def test_a_call_that_does_not_fit_says_nothing(error: Exception) -> None:
    model, x = Fails(error), batch()
    with left_alone(model, x):
        probing.probe(model, (x,), {})


class Writes(nn.Module):
    """Writes to a parameter, a buffer, its argument, attributes and all random states."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 4, max_norm=0.5)
        self.register_buffer("count", torch.zeros(2))
        self.seen: list[Any] = []
        self.plain = torch.ones(3)

    def forward(self, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        self.count += 1
        self.plain.mul_(2)
        self.seen.append(x)
        self.last = x
        x.mul_(2)
        random.random(), np.random.rand()
        return self.table(torch.arange(4)) + x + torch.rand(4, generator=generator) + torch.rand(4)


def test_nothing_of_the_one_call_remains() -> None:
    torch.manual_seed(0)
    model, x, generator = Writes(), batch(), torch.Generator()
    state = generator.get_state()
    earlier = (model.table.weight * 2).square().sum()  # saved for a backward that is still to come
    with left_alone(model, (x,)):
        probing.probe(model, (x, generator), {})
    assert torch.equal(generator.get_state(), state)
    assert torch.equal(model.plain, torch.ones(3))
    assert model.seen == []
    earlier.backward()


def test_a_forward_that_needs_gradients_itself_is_tried_with_them() -> None:
    class Force(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.layer(x).tanh().sum(), x, create_graph=True)[0]

    model, x = Force(), batch()
    with left_alone(model, x):
        probing.probe(model, (x,), {})


def test_compiled_parts_are_not_compiled_for_one_call() -> None:
    compiled: list[Any] = []
    part = torch.compile(nn.Linear(4, 4), backend=lambda graph, _: compiled.append(graph) or graph.forward)
    model, x = nn.Sequential(part), batch()
    probing.probe(model, (x,), {})
    assert compiled == []


def test_a_call_that_takes_long_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            while True:
                with contextlib.suppress(Exception):
                    x.add_(1)

    monkeypatch.setattr(probing, "CALL_MOST_S", 0.2)
    model, x = Endless(), batch()
    with left_alone(model, x):
        probing.probe(model, (x,), {})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_sample_on_another_device_is_told_before_planning() -> None:
    model, x = Net().cuda(), batch()
    with left_alone(model, x), pytest.raises(TraceError, match="itself fails.*device"):
        plan_it(model, x)


def test_fake_tensors_are_not_tried() -> None:
    with FakeTensorMode():
        model, x = Fails(ValueError()), batch()
        probing.probe(model, (x,), {})
    model, x = Fails(ValueError()).to("meta"), batch().to("meta")
    probing.probe(model, (x,), {})
