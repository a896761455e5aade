"""Calls that follow each other: numbers that change, state that the first call sets up, hooks, rates of epochs."""

from __future__ import annotations

import copy
import inspect
import warnings

import pytest
import torch
from torch import nn

import rekindle
from changing_net import equal, pair, plans, silent, step
from marks import every, sweep
from rekindle import RekindleWarning


# -- numbers that change -----------------------------------------------------------------------------------------------------
def test_a_number_that_changes_at_every_call_is_an_input() -> None:
    plain, planned, x = pair()
    assert equal(plain, planned, x, weight=0.3)
    assert equal(plain, planned, x, weight=0.31)
    count = plans(planned)
    for k in range(12):
        with silent():
            assert equal(plain, planned, x, weight=0.32 + k / 7)
    assert plans(planned) == count


def test_an_attribute_that_changes_at_every_call_is_an_input() -> None:
    plain, planned, x = pair()
    for k in range(12):
        plain.scale = planned.scale = 1.3 + k / 7
        with silent():
            assert equal(plain, planned, x)
        if k == 1:
            count = plans(planned)
    assert plans(planned) == count
    plain.scale = planned.scale = 2  # an int is another graph
    assert equal(plain, planned, x)


class Counts(nn.Module):
    """What forward may do with a number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, n: int = 1, t: float = 0.25, way: str = "arithmetic") -> torch.Tensor:
        h = self.linear(x)
        if way == "arithmetic":
            return h / n - (1 - t) * h.tanh().abs() ** t + torch.add(h, h, alpha=t * n) + n % 3
        if way == "branch":
            return h * t if t > 0.5 and n != 4 else h - t
        if way == "dropout":
            return nn.functional.dropout(h, t)
        if way == "loop":
            for _ in range(n):
                h = h.sin()
            return h
        if way == "size":
            return h[:n] * t
        if way == "math":
            import math

            return h * math.exp(t)
        if way == "tensor":
            return h * torch.tensor(t) + torch.full((4,), t)
        return h * float(t) + len(f"{t:.3f}")


@pytest.mark.parametrize("way", every(3, ["arithmetic", "branch", "dropout", "loop", "size", "math", "tensor", "text"]))
def test_whatever_forward_does_with_a_number_the_bits_are_eagers(way: str) -> None:
    plain, x = Counts(), torch.randn(8, 4)
    planned = rekindle.checkpoint(copy.deepcopy(plain), (x, 1, 0.25, way), minimize="memory", solver="storages")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n, t in (
            (2, 0.3),
            (3, 0.4),
            (4, 0.6),
            (5, 0.7),
            (4, 0.8),
            (7, 0.5),
            (6, 0.0),
            (9, 0.9),
            (8, 0.2),
            (5, 0.65),
            (3, 0.1),
        ):
            assert equal(plain, planned, x, n, t, way)
    assert len(told) <= 1, [str(w.message) for w in told]
    if told:
        assert "differ from call to call" in str(told[0].message)
        assert "t" in str(told[0].message)
    else:
        assert way in ("arithmetic", "branch")


# -- calls that follow each other --------------------------------------------------------------------------------------------
class Indexed(nn.Module):
    """Makes position indices at its first call, of another shape than what stood there, and a state."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("indices", torch.zeros(1, 1), persistent=False)
        self.state: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.indices.shape[0] != x.shape[0]:
            self.indices = torch.arange(x.shape[0], dtype=x.dtype)[:, None] / x.shape[0]
        h = torch.tanh(self.linear(x) + self.indices)
        h = h if self.state is None else h + 0.5 * self.state
        self.state = h.detach().mean(0)
        return h


def test_what_the_first_call_sets_up_is_planned_for_beforehand(capfd: pytest.CaptureFixture[str]) -> None:
    plain, x = Indexed(), torch.randn(6, 8)
    planned = rekindle.checkpoint(copy.deepcopy(plain), x, minimize="memory", solver="storages")
    assert planned.state is None
    assert planned.indices.shape == (1, 1)
    count = plans(planned)
    capfd.readouterr()
    with silent():
        for _ in range(3):
            assert equal(plain, planned, x)
            assert planned.forward.last is not None
    assert planned.forward.last.plan is planned.forward.plan
    assert plans(planned) == count
    assert capfd.readouterr().err == ""


def test_a_planned_forward_shows_the_signature_of_its_own() -> None:
    """By it Hugging Face's Trainer tells which columns of a batch the model takes."""
    plain, planned, _ = pair()
    assert inspect.signature(planned.forward) == inspect.signature(plain.forward)


def test_a_check_tells_nothing_of_its_own_calls() -> None:
    class Drawn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(nn.functional.dropout(self.linear(x)))

    with silent():
        rekindle.checkpoint(Drawn(), torch.randn(5, 4), minimize="memory", solver="storages")


@sweep
def test_a_rate_that_changes_with_each_epoch_goes_on_being_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    from rekindle.torch.serve import bound_plans, refusals

    plain, planned, x = pair()
    monkeypatch.setattr(refusals, "WASTED_PLANS_MOST", 3)
    monkeypatch.setattr(bound_plans, "SETTINGS", bound_plans.BoundPlansSettings(plans_least=4, plans_most=4))
    with silent():
        for epoch in range(8):
            for m in (plain, planned):
                m.rates[1] = 0.9 - epoch / 10
            for _ in range(3):
                assert equal(plain, planned, x)
    assert planned.forward.last is not None
    assert plans(planned) == 4
    for k in range(4):  # and one that changes with each call does not
        for m in (plain, planned):
            m.rates[1] = 3.0 + k
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert equal(plain, planned, x)
    assert ["rates" in str(w.message) for w in told] == [True]


@pytest.mark.parametrize("p", every(3, [0.04, 0.09, 0.1, 0.15, 0.3, 0.5]))
def test_dropout_at_any_rate(p: float) -> None:
    """1 / (1 - p) in single precision is not always what double precision rounds to."""
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Dropout(p), nn.Linear(64, 32))
    x = torch.randn(64, 32)
    assert rekindle.verify(model, x, rekindle.plan(rekindle.trace(model, x), minimize="memory", solver="storages")).ok


def test_a_hook_that_is_there_before_planning_is_named() -> None:
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), []
    model[0].register_forward_hook(lambda m, args, out: seen.append(1))
    with pytest.warns(RekindleWarning, match="forward hook"):
        rekindle.checkpoint(model, torch.randn(5, 4), minimize="memory", solver="storages")


@sweep
def test_a_forward_that_was_given_back_may_take_over_again() -> None:
    _, planned, x = pair()
    forward = planned.forward
    rekindle.restore(planned)
    forward.take_over(planned)
    forward.last = None
    step(planned, x)
    assert forward.last is not None


def test_a_hook_that_was_named_at_planning_does_not_keep_a_new_shape_from_its_plan() -> None:
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), []
    model[0].register_forward_hook(lambda m, args, out: seen.append(1))
    with pytest.warns(RekindleWarning, match="forward hook"):
        rekindle.checkpoint(model, torch.randn(5, 4), minimize="memory", solver="storages")
    seen.clear()
    with silent():
        model(torch.randn(7, 4)).sum().backward()
    assert plans(model) == 2
    model[1].register_forward_hook(lambda m, args, out: seen.append(2))
    with pytest.warns(RekindleWarning, match="run plain"):
        model(torch.randn(7, 4)).sum().backward()
    assert seen == [1, 2]


class Moved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.by


@sweep
def test_a_later_input_of_inference_mode_runs_plain_with_a_word() -> None:
    plain, planned, x = pair()
    with torch.inference_mode():
        odd = x.clone()
    for model in (plain, planned):  # nothing is saved of the input, so that eager trains on it
        model.blocks.insert(0, Moved())
        model.rates = [1.0] * 4
    rekindle.restore(planned)
    rekindle.checkpoint(planned, x, budget=0.7, effort="quick", cost="unit", progress=False, cache=False)
    with pytest.warns(RekindleWarning, match="a tensor made under torch.inference_mode, which cannot be planned"):
        assert equal(plain, planned, odd)
    with silent():
        assert equal(plain, planned, odd)
        assert equal(plain, planned, x)
