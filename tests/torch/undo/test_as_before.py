"""Steps that are run to learn something leave the model, and what its code reaches, as they were."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rekindle
from rekindle.errors import TraceError
from rekindle.torch.undo.kept import kept

pytestmark = pytest.mark.filterwarnings("ignore::rekindle.RekindleWarning")


class Net(nn.Module):
    def __init__(self, gate: torch.Tensor | None = None):
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 16)
        self.register_buffer("gate", torch.rand(16) if gate is None else gate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).tanh()).sin() * self.gate


def planned(model: nn.Module, x: torch.Tensor) -> nn.Module:
    return rekindle.checkpoint(model, x, minimize="memory", solver="storages", time_limit=2)


def test_a_buffer_that_an_earlier_call_saved_keeps_its_version() -> None:
    model = planned(Net(), torch.rand(32, 16))
    factor = torch.rand(16, requires_grad=True)
    of_the_user = (factor * model.gate).sum()
    earlier = model(torch.rand(32, 16))
    version = model.gate._version
    model(torch.rand(8, 16))  # planned anew, and tried
    assert model.gate._version == version
    (earlier.sum() + of_the_user).backward()


def test_an_expanded_buffer() -> None:
    model = planned(Net(torch.ones(1).expand(16)), torch.rand(32, 16))
    model(torch.rand(8, 16)).sum().backward()
    assert {b.uses for b in model.forward.bounds} == {0, 1}


def test_an_expanded_buffer_beside_what_the_first_call_sets() -> None:
    class Later(Net):
        scale: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.scale is None:
                self.scale = torch.ones(16)
            return super().forward(x) * self.scale

    model = planned(Later(torch.ones(1).expand(16)), torch.rand(32, 16))
    assert model.scale is None


def test_a_frozen_parameter_that_forward_writes_is_as_before_the_trial() -> None:
    class Mean(Net):
        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.Parameter(torch.zeros(16), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = super().forward(x)
            self.mean.mul_(0.5).add_(h.detach().mean(0))
            return h * self.mean.clone()

    x, left = torch.rand(32, 16), []
    for plan in (False, True):
        torch.manual_seed(0)
        model = Mean()
        if plan:
            planned(model, x)
        model(x), model(x[:8])
        left.append(model.mean.detach().clone())
    assert torch.equal(*left)


CALLS = [0]


class Counts(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CALLS[0] += 1
        return super().forward(x)


@pytest.mark.parametrize("run", [planned, lambda model, x: rekindle.verify(planned(model, x), x)])
def test_hooks_and_counters_are_put_back(run: Any) -> None:
    CALLS[0], kept, at_root, gradients = 0, [], [], []
    model = Counts()
    model.a.register_forward_hook(lambda module, args, out: kept.append(out.detach()))
    model.register_forward_hook(lambda module, args, out: at_root.append(len(at_root)))
    model.a.weight.register_hook(lambda g: gradients.append(g))
    run(model, torch.rand(32, 16))
    assert (CALLS[0], kept, at_root, gradients) == (0, [], [], [])


def test_a_step_that_fails_leaves_counters_too() -> None:
    seen: list[int] = []

    class Fails(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(1)
            raise ValueError

    with pytest.raises(rekindle.TraceError):
        planned(Fails(), torch.rand(32, 16))
    assert seen == []


def test_tensor_hooks_do_not_see_the_trial() -> None:
    model, gradients = planned(Net(), torch.rand(32, 16)), []
    model.a.weight.register_hook(lambda g: gradients.append(g))
    loss = model(torch.rand(8, 16)).sum()
    assert gradients == []
    loss.backward()
    assert len(gradients) == 1


@pytest.mark.parametrize(
    ("make", "draw", "state"),
    [
        (lambda: random.Random(0), lambda g: g.random(), lambda g: g.getstate()),
        (lambda: np.random.default_rng(0), lambda g: g.random(), lambda g: str(g.bit_generator.state)),
        (lambda: np.random.RandomState(0), lambda g: g.rand(), lambda g: str(g.get_state())),
        (torch.Generator, lambda g: torch.rand(16, generator=g), lambda g: g.get_state().tolist()),
    ],
)
def test_a_generator_in_an_attribute_is_put_back_and_never_a_constant(make: Any, draw: Any, state: Any) -> None:
    class Draws(Net):
        def __init__(self) -> None:
            super().__init__()
            self.generator = make()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * draw(self.generator)

    model = Draws()
    before = state(model.generator)
    with pytest.raises(rekindle.TraceError, match="generator"):
        planned(model, torch.rand(32, 16))
    assert state(model.generator) == before


@pytest.mark.parametrize("make", [random.Random, np.random.default_rng, np.random.RandomState, torch.Generator])
def test_a_generator_that_forward_does_not_use_is_no_constant(make: Any) -> None:
    model = Net()
    model.generator = make()
    assert planned(model, torch.rand(32, 16)) is model


def test_code_that_begins_anew_finds_everything_as_it_was() -> None:
    class Changing(Net):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.calls, self.rows = [0], 0, iter(range(9))

    def state() -> list[Any]:
        tensors = [t.detach().clone() for t in (*model.parameters(), *model.buffers())]
        return [[x.tolist() for x in tensors], model.calls, list(model.seen), model.a.weight._version]

    def change() -> list[Any]:
        found = state()
        with torch.no_grad():
            model.a.weight.mul_(2)
        model.gate = torch.zeros(16)
        model.calls += 1
        model.seen.append(1)
        model.b.new = model.calls  # type: ignore[assignment]
        with pytest.raises(TraceError, match="takes items of an iterator"):
            next(model.rows)
        return [*found, torch.rand(2).tolist(), random.random(), float(np.random.rand())]

    model = Changing()
    before = state()
    with kept(model) as as_it_was:
        first = change()
        as_it_was.again()
        assert not hasattr(model.b, "new")
        assert change() == first
    assert state() == before == first[: len(before)]
    assert next(model.rows) == 0
