"""Parts of many small models that decide by values: they train bit for bit as eager does, or are refused with the line."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rekindle
from marks import few, sweep
from models_in_parts import differing, train
from models_that_decide import (
    DECIDING,
    WORDS,
    MasksInPlace,
    Noted,
    Penalised,
    SeedsItself,
    SkipsByPython,
    SkipsInParts,
    Words,
)
from refused import left_alone
from rekindle import ParityError, PartsPlan, TraceError, allowance

LEAST: dict[str, Any] = {"minimize": "memory", "effort": "quick", "progress": False}
QUICK = ("SkipsByPython", "SparseGradients", "MasksInPlace")


def words() -> tuple[torch.Tensor]:
    return (torch.randint(0, WORDS, (4, 32)),)


def seeded(model: nn.Module, sample: Any) -> list[Any]:
    """Three steps from fixed states of Python's and NumPy's generators, with sparse gradients made dense."""
    random.seed(5)
    np.random.seed(5)
    found: list[Any] = [t.to_dense() if t is not None and t.is_sparse else t for t in train(model, sample)]
    assert all(t is None or not t.is_floating_point() or bool(t.isfinite().all()) for t in found)
    return [*found, torch.tensor(random.random()), torch.tensor(np.random.rand())]


@pytest.mark.parametrize("name", few(DECIDING, QUICK))
def test_trains_as_eager_does(name: str) -> None:
    torch.manual_seed(0)
    model, sample = DECIDING[name]()
    twin = copy.deepcopy(model)
    with left_alone(model, sample):
        rekindle.checkpoint(model, sample, **LEAST)
        plan = model.forward.plan
        rekindle.restore(model)
    assert isinstance(plan, PartsPlan)
    rekindle.apply(model, plan)
    assert plan.peak_bytes < plan.baseline_peak_bytes
    assert differing(seeded(model, sample), seeded(twin, sample)) == 0


def in_two_calls(model: nn.Module, x: torch.Tensor) -> None:
    a, b = model(x), model(x.flip(0))
    (a * b).backward()


def twice_through_one_graph(model: nn.Module, x: torch.Tensor) -> None:
    loss = model(x)
    loss.backward(retain_graph=True)
    loss.backward()


def added_up(model: nn.Module, x: torch.Tensor) -> None:
    for part in x.split(2):
        model(part).backward()
        model(part).backward()


def under_autocast(model: nn.Module, x: torch.Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(x)
    loss.backward()


def in_eval(model: nn.Module, x: torch.Tensor) -> None:
    model.eval()
    model(x).backward()
    model.train()
    model(x).backward()


WAYS = [in_two_calls, twice_through_one_graph, added_up, under_autocast, in_eval]


@sweep
@pytest.mark.parametrize("name", ["ScalesDown", "FakeQuantised", "Shared", "MasksInPlace", "Structured"])
@pytest.mark.filterwarnings("ignore:.* called again before the backward:rekindle.RekindleWarning")
def test_other_ways_to_step(name: str) -> None:
    torch.manual_seed(0)
    model, sample = DECIDING[name]()
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, sample, **LEAST)
    for way in WAYS:
        found = []
        for m in (model, copy.deepcopy(model), twin):
            torch.manual_seed(7)
            m.zero_grad()
            way(m, *sample)
            found.append([*(p.grad for p in m.parameters()), torch.get_rng_state()])
        assert differing(found[0], found[2]) == 0, way.__name__
        assert differing(found[1], found[2]) == 0, f"a copy: {way.__name__}"


@pytest.mark.parametrize("all_planned", [True, False])
def test_parts_that_share_weights_under_autocast(all_planned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager casts a shared parameter once, and adds its gradients in the lower precision. So do parts of which the first are
    planned, and the others run plain since the time for plans is over."""
    model = Words(layers=3).train()
    for block in model.blocks[1:]:
        block.up.weight = model.blocks[0].up.weight
    if not all_planned:
        none_left = replace(allowance.SETTINGS, mid_run_least_s=0.0, mid_run_share=0.0)
        monkeypatch.setattr(allowance, "SETTINGS", none_left)
    sample = words()
    rekindle.checkpoint(model, sample, **LEAST)
    model(*sample).backward()
    twin = rekindle.restore(copy.deepcopy(model))
    for cached in (True, False):
        found = []
        for m in (model, twin):
            m.zero_grad()
            torch.manual_seed(7)
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
                loss = m(*sample)
            loss.backward()
            found.append([p.grad for p in m.parameters()])
        assert differing(*found) == 0
    assert bool(rekindle.status(model).plain) is not all_planned


# -- refused, with the reason -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (SkipsInParts, TraceError, r"models_that_decide.*No part of the model can be planned.*: .*SkipsInParts "
         r"\(models_that_decide\.py:\d+ draws from Python's"),
        (Penalised, TraceError, r"planned parts fails at .*create_graph=True\)\": .*As a whole it cannot be planned because"),
        (SeedsItself, ParityError, r"Nor do two plain steps of SeedsItself .*torch\.seed\(\)"),
    ],
)  # fmt: skip
def test_refused_with_the_line(make: Callable[[], nn.Module], error: type[Exception], text: str) -> None:
    model, sample = make().train(), words()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(error, match=text):
        rekindle.checkpoint(model, sample, **LEAST)
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())
    assert "forward" not in model.__dict__


def test_the_line_names_the_reasons_of_parts(caplog: pytest.LogCaptureFixture) -> None:
    """Those that the short line has no room for are in the log."""
    caplog.set_level("INFO", logger="rekindle")
    model = Noted().train()
    rekindle.checkpoint(model, words(), **LEAST)
    assert model.forward.plan.covered.endswith(" and 1 more")
    assert "MLP (its plan would not run the forward hook note (models_that_decide.py:" in caplog.text
    model = SkipsByPython().train()
    rekindle.checkpoint(model, words(), **LEAST)
    covered = model.forward.plan.covered
    assert "SkipsByPython (models_that_decide.py:" in covered
    assert "draws from Python's or NumPy's random generator)" in covered
    assert "contextlib" not in covered


class Positions(nn.Module):
    """Gives constants: it has nothing to plan."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(32, 48))
        self.inner = nn.Identity()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.inner(self.table[: h.shape[1]])


class WithPositions(Words):
    def __init__(self) -> None:
        super().__init__()
        self.positions = Positions()

    def body(self, h: torch.Tensor) -> torch.Tensor:
        return super().body(h + self.positions(h))


def test_a_submodule_without_backward_is_not_told() -> None:
    model = WithPositions().train()
    rekindle.checkpoint(model, words(), **LEAST)
    assert "Positions (" not in model.forward.plan.covered.replace("WithPositions", "")


def test_a_result_that_was_saved_cannot_be_written_unseen() -> None:
    """A view of a saved tensor stays a view, so that autograd refuses to write to it."""

    class Saved(MasksInPlace):
        def body(self, h: torch.Tensor) -> torch.Tensor:
            for b in self.blocks:
                h, x = b(h)
                x.mul_(2)
                h = h + x
            return h

    model, sample = Saved().train(), words()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(*sample).backward()
    with pytest.raises(rekindle.RekindleError, match="inplace"):
        rekindle.checkpoint(model, sample, **LEAST)
