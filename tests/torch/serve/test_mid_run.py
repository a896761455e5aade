"""Calls in the middle of a run that no plan is for: eager's numbers, one line, and no search at each further call."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import sweep
from rekindle import PlanMismatch, RekindleWarning
from rekindle.torch.serve import replanner
from rekindle.torch.situation import guards

GOAL: dict[str, Any] = {"minimize": "memory", "solver": "storages"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 8)
        self.looks = False

    def forward(self, x: torch.Tensor, scales: Iterable[float] = (), sign: float = 0.0, times: int = 0) -> torch.Tensor:
        h = self.drop(self.first(x).tanh())
        for s in scales:
            h = h * s
        for _ in range(times % 5):
            h = h.sin()
        h = self.second(h)
        if self.looks and bool(h.sum() > 0):
            h = -h
        return h + torch.copysign(torch.ones(()), torch.full((), sign))


def pair(**more: Any) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """(plain, planned, input)."""
    torch.manual_seed(0)
    plain, x = Net(), torch.randn(4, 8)
    return plain, rekindle.checkpoint(copy.deepcopy(plain), x, **GOAL, **more), x


def equal(plain: nn.Module, planned: nn.Module, *args: Any, **kwargs: Any) -> bool:
    """Whether one step of each gives the same numbers."""
    found = []
    for m in (plain, planned):
        m.zero_grad()
        torch.manual_seed(1)
        out = m(*[a() if callable(a) else a for a in args], **kwargs)
        if out.requires_grad:
            out.sum().backward()
        found.append([out.detach(), *(torch.zeros(()) if p.grad is None else p.grad.clone() for p in m.parameters())])
    return all(map(torch.equal, *found))


@contextmanager
def told(*texts: str) -> Iterator[None]:
    """One warning with each of these texts, and no other."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", RekindleWarning)
        yield
    lines = [str(w.message) for w in found if issubclass(w.category, RekindleWarning)]
    assert len(lines) == len(texts), lines
    assert all(text in line for text, line in zip(texts, lines, strict=True)), lines


# -- arguments -------------------------------------------------------------------------------------------------------------
def test_zero_of_the_other_sign_is_no_default() -> None:
    plain, planned, x = pair()
    assert equal(plain, planned, x, sign=0.0)
    assert len(list(planned.forward.bounds)) == 1
    assert equal(plain, planned, x, sign=-0.0)


def test_an_iterator_is_read_by_forward_alone() -> None:
    plain, planned, x = pair()
    with told("scales can be read only once"):
        for _ in range(3):
            assert equal(plain, planned, x, lambda: iter([2.0, 3.0]))
            assert equal(plain, planned, x, lambda: (s for s in (2.0, 3.0)))
    _, strict, _ = pair(on_new_shape="error")
    with pytest.raises(PlanMismatch, match="read only once"):
        strict(x, iter([2.0]))


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight.T) if x.is_nested else x @ self.weight


def by_rows(x: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x.to_sparse_csr()


@pytest.mark.parametrize("odd", [by_rows, torch.Tensor.to_sparse, lambda x: torch.nested.nested_tensor([x, x])])
def test_a_tensor_without_strides_runs_plain_with_a_word(odd: Any) -> None:
    x = torch.randn(4, 8)
    planned = rekindle.checkpoint(Product(), x, **GOAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = odd(x)
    with told("cannot be planned"):
        for _ in range(2):
            planned(given)
    rekindle.apply(planned, planned.forward.plan, on_new_shape="error")
    with pytest.raises(PlanMismatch, match="cannot be planned"):
        planned(given)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 0.3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class MayScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(8, 8), Scale()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x).tanh()
        return self.scale(h) if hasattr(self, "scale") else h


def test_a_submodule_whose_number_is_an_input_may_go() -> None:
    x, plain = torch.randn(4, 8), MayScale()
    planned = rekindle.checkpoint(copy.deepcopy(plain), x, **GOAL)
    for k in range(3):
        plain.scale.factor = planned.scale.factor = 0.31 + k / 100
        assert equal(plain, planned, x)
    del plain.scale, planned.scale
    assert equal(plain, planned, x)


# -- eval() ----------------------------------------------------------------------------------------------------------------
def test_a_module_planned_in_eval_is_planned_there_for_new_shapes() -> None:
    plain, x = Net().eval(), torch.randn(4, 8)
    planned = rekindle.checkpoint(copy.deepcopy(plain), x, **GOAL)
    assert equal(plain, planned, torch.randn(5, 8))
    assert len(list(planned.forward.bounds)) == 2
    strict = rekindle.checkpoint(copy.deepcopy(plain), x, **GOAL, on_new_shape="error")
    with pytest.raises(PlanMismatch):
        strict(torch.randn(5, 8))
    with torch.no_grad():
        strict(torch.randn(5, 8))


def test_a_plan_from_a_file_binds_in_eval(tmp_path: Path) -> None:
    plain, x = Net().eval(), torch.randn(4, 8)
    rekindle.plan(rekindle.trace(plain, x), **GOAL).save(tmp_path / "plan.json")
    planned = rekindle.apply(copy.deepcopy(plain), rekindle.load(tmp_path / "plan.json"))
    assert equal(plain, planned, x)
    assert planned.forward.last is not None


def test_a_plan_from_a_file_waits_while_the_module_is_evaluated(tmp_path: Path) -> None:
    plain, x = Net(), torch.randn(4, 8)
    rekindle.plan(rekindle.trace(plain, x), **GOAL).save(tmp_path / "plan.json")
    planned = rekindle.apply(copy.deepcopy(plain).eval(), rekindle.load(tmp_path / "plan.json"))
    plain.eval()
    with told("the plan is for graph"):
        for _ in range(2):
            assert equal(plain, planned, x)
    plain.train()
    planned.train()
    assert equal(plain, planned, x)
    assert planned.forward.last is not None


def test_training_in_eval_what_was_planned_in_train_says_so_once() -> None:
    plain, planned, x = pair(on_new_shape="error")
    plain.eval()
    planned.eval()
    with told("trained in eval()"):
        for _ in range(8):
            assert equal(plain, planned, x)


def test_evaluation_with_gradients_left_on_is_quiet() -> None:
    _, planned, x = pair()
    planned.eval()
    with told():
        for k in range(8):
            planned(torch.randn(k + 1, 8)).sum().item()
    assert len(list(planned.forward.bounds)) == 1


# -- plans from files ------------------------------------------------------------------------------------------------------
def test_a_plan_from_a_file_waits_while_nothing_trains(tmp_path: Path) -> None:
    plain, x = Net(), torch.randn(4, 8)
    rekindle.plan(rekindle.trace(plain, x), **GOAL).save(tmp_path / "plan.json")
    planned = rekindle.apply(copy.deepcopy(plain), rekindle.load(tmp_path / "plan.json"))
    for m in (plain, planned):
        m.requires_grad_(False)
    with told():
        assert equal(plain, planned, x)
    for m in (plain, planned):
        m.requires_grad_(True)
    assert equal(plain, planned, x)
    assert planned.forward.last is not None


def test_a_first_call_that_cannot_be_captured_does_not_end_a_run(tmp_path: Path) -> None:
    plain, x = Net(), torch.randn(4, 8)
    rekindle.plan(rekindle.trace(plain, x), **GOAL).save(tmp_path / "plan.json")
    planned, strict = copy.deepcopy(plain), copy.deepcopy(plain)
    rekindle.apply(planned, rekindle.load(tmp_path / "plan.json"))
    rekindle.apply(strict, rekindle.load(tmp_path / "plan.json"), on_new_shape="error")
    plain.looks = planned.looks = strict.looks = True
    with told("depend on tensor values"):
        for _ in range(2):
            assert equal(plain, planned, x)
    with pytest.raises(rekindle.TraceError):
        strict(x)
    plain.looks = planned.looks = False
    assert equal(plain, planned, x)
    assert planned.forward.last is not None


# -- one warning, one search -----------------------------------------------------------------------------------------------
def test_shapes_that_cannot_be_planned_are_told_of_once() -> None:
    plain, planned, _ = pair()
    plain.looks = planned.looks = True
    with told("depend on tensor values"):
        for k in range(1, 6):
            assert equal(plain, planned, torch.randn(k, 8))


def counted(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> list[str]:
    """Grows at each call of that function."""
    calls: list[str] = []
    real = getattr(where, name)
    monkeypatch.setattr(where, name, lambda *a, **k: (calls.append(name), real(*a, **k))[1])
    return calls


@sweep
def test_an_argument_that_varies_is_not_looked_into_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, planned, x = pair()
    with told("times differ"):
        for k in range(1, 12):
            assert equal(plain, planned, x, times=k)
    calls = [*map(counted, [monkeypatch] * 2, [replanner, guards], ["changed_numbers", "ModuleState"])]
    for k in range(20, 24):
        assert equal(plain, planned, x, times=k)
    assert calls == [[], []]
    plain.first.out_scale = planned.first.out_scale = 1  # nobody reads it
    assert equal(plain, planned, x)
    assert equal(plain, planned, x, scales=[2.0])
    assert calls[0]  # another argument is looked into


def test_going_to_and_fro_between_two_states_takes_quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, planned, x = pair()
    built: list[str] = []
    for k in range(6):
        if k == 3:
            built = counted(monkeypatch, guards, "ModuleState")
        for m in (plain, planned):
            m.first.weight.requires_grad_(k % 2 == 0)
            m.drop.p = 0.1 if k % 2 else 0.2
        assert equal(plain, planned, x)
    assert built == []


def test_a_plan_whose_trial_fails_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> list[str]:
        raise MemoryError("no room for the trial")

    plain, planned, _ = pair()
    monkeypatch.setattr(replanner.trial, "differences", fails)
    with told("no room for the trial"):
        for _ in range(2):
            assert equal(plain, planned, torch.randn(5, 8))
    assert len(list(planned.forward.bounds)) == 1


# -- plans that are not in use ---------------------------------------------------------------------------------------------
class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).sum()


def test_a_check_is_no_use_of_the_plan() -> None:
    outer, x = Outer(), torch.randn(4, 8)
    rekindle.checkpoint(outer, x, **GOAL)
    with told():
        for _ in range(2):
            rekindle.verify(outer, x)
            rekindle.verify(outer, x, outer.forward.plan)
    with told("the plan of Outer is not in use"):
        for _ in range(8):
            outer.model(x).sum().backward()
