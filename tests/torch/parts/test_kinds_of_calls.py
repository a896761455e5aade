"""Parts that one step calls in several ways, and parts with two parents: planned, saved, and bound again."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import sweep

QUICK: dict[str, Any] = {"effort": "quick", "progress": False}


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None, twice: bool = False) -> torch.Tensor:
        h = torch.relu(self.first(x.float()))
        h = h if y is None else h + self.first(y)
        h = torch.relu(self.second(h))
        return self.last(torch.tanh(self.second(h)) if twice else h).to(x.dtype)


class Twice(nn.Module):
    """Calls its head in two or more ways, and decides by a value, so that it is planned in parts."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind, self.before, self.head = kind, Head(), Head()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.before(x)
        loss = self.head(x).square().mean() + made.square().mean()
        if self.kind in ("gradient", "three"):
            loss = loss - self.head(made).mean()
        if self.kind in ("shape", "three"):
            loss = loss - self.head(x[:20]).mean()
        if self.kind == "dtype":
            loss = loss - self.head(x.double()).mean()
        if self.kind == "arguments":
            loss = loss - self.head(x, twice=True).mean()
        if self.kind == "which":
            loss = loss - self.head(x, made).mean() - self.head(made, x).mean()
        return loss if loss.item() == loss.item() else loss * 0


def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss = model(x).sum()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


LONGER = [pytest.param(kind, marks=sweep) for kind in ("shape", "dtype", "arguments", "which", "three")]


@pytest.mark.parametrize("kind", ["gradient", *LONGER])
def test_each_kind_of_call_of_a_part_is_bound_from_a_file(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Twice(kind), torch.randn(48, 16)
    other = copy.deepcopy(model)
    right = step(copy.deepcopy(model), x)
    rekindle.checkpoint(model, x, budget=0.7, or_least=True, **QUICK)
    kinds = {"which": 3, "three": 3}.get(kind, 2)
    assert [path for path, _ in model.forward.plan.pieces].count("head") == kinds
    model.forward.plan.save(tmp_path / "plan.json")
    rekindle.apply(other, rekindle.load(tmp_path / "plan.json"), on_new_shape="error")
    for each in (pickle.loads(pickle.dumps(other)), other):
        assert all(map(torch.equal, step(each, x), right))
        assert {f.forward.tally.ran for f in (each.before, each.head)} == {1, kinds}


def test_a_kind_of_call_that_the_file_lacks_is_an_error(tmp_path: Path) -> None:
    model, x = Twice("shape"), torch.randn(48, 16)
    other = copy.deepcopy(model)
    rekindle.checkpoint(model, x, budget=0.7, or_least=True, **QUICK)
    model.forward.plan.save(tmp_path / "plan.json")
    rekindle.apply(other, rekindle.load(tmp_path / "plan.json"), on_new_shape="error")
    with pytest.raises(rekindle.PlanMismatch, match="first difference"):
        other(torch.randn(47, 16))
    step(other, x)
    with pytest.raises(rekindle.PlanMismatch, match="for which there is no plan"):
        other(torch.randn(47, 16))


# -- two parents -----------------------------------------------------------------------------------------------------------
def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))


class Shared(nn.Module):
    """Its block `a.1` is `b.1` too."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.ModuleList(block() for _ in range(2))
        self.b = nn.Sequential(block(), self.a[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a[1](self.a[0](x)))


@pytest.mark.parametrize(
    ("named", "planned"),
    [
        ("b.1", ["a.1"]),
        ("b.*", ["a.1", "b.0"]),
        (["b", "b.1"], ["b"]),
        (["a.*", "b"], ["a.0", "a.1", "b"]),
        (["a.1", "b.1"], ["a.1"]),
    ],
)
def test_a_part_with_two_parents_has_two_names(named: Any, planned: list[str]) -> None:
    model = Shared()
    rekindle.checkpoint(model, torch.randn(8, 16), minimize="memory", parts=named, **QUICK)
    assert [part.path for part in model.forward.plan.parts] == planned


def test_a_planned_part_is_no_state_of_the_part_around_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Shared(), torch.randn(8, 16)
    right, other = step(copy.deepcopy(model), x), copy.deepcopy(model)
    rekindle.checkpoint(model, x, minimize="memory", parts=["a.*", "b"], **QUICK)
    model.forward.plan.save(tmp_path / "plan.json")
    rekindle.apply(other, rekindle.load(tmp_path / "plan.json"), on_new_shape="error")
    with warnings.catch_warnings():
        warnings.simplefilter("error", rekindle.RekindleWarning)
        for _ in range(4):
            for each in (model, other):
                assert all(map(torch.equal, step(each, x), right))
    for each in (model, other):
        assert [len([*each.get_submodule(path).forward.bounds]) for path in ("a.0", "a.1", "b")] == [1, 1, 1]


# -- compiled --------------------------------------------------------------------------------------------------------------
class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = block(), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x) * self.scale


@sweep
@pytest.mark.parametrize(
    ("changes", "words"), [("scale", r"module\.scale == 1\.\d+\).*keep what changes"), ("size", "pad inputs")]
)
def test_the_limit_of_recompilations_names_what_changed(changes: str, words: str) -> None:
    model = nn.Sequential(Scaled(), nn.Linear(16, 16))
    rekindle.checkpoint(model, torch.randn(64, 16), minimize="memory", parts="0", compile=True, **QUICK)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for i in range(12):
            if changes == "scale":
                model[0].scale = 1 + i / 10
            model(torch.randn(20 + i if changes == "size" else 64, 16)).sum().backward()
    said = [str(w.message) for w in found if w.category is rekindle.RekindleWarning]
    assert len(said) == 1
    assert re.search(words, said[0])


@sweep
def test_a_compiled_part_that_calls_another_part_is_left_out() -> None:
    model, x = Shared(), torch.randn(64, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error", rekindle.RekindleWarning)
        rekindle.checkpoint(model, x, minimize="memory", parts=["a.*", "b"], compile=True, **QUICK)
        step(model, x)
    assert [part.path for part in model.forward.plan.parts] == ["a.0", "a.1"]
    assert "calls a.1, which is a part by itself" in model.forward.plan.covered
