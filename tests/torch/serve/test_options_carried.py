"""A plan for a new shape is made with every option that the first plan was made with, whichever way that plan came."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rekindle
from marks import every
from rekindle.ask import PlanOptions, TraceOptions
from two_results import TwoResults

GIVEN_TO_TRACE = ("loss", "target", "optimizer", "must_save", "unused")
LINES: list[str] = []
OPTIONS: list[dict[str, Any]] = [
    {"time_limit": 3.5}, {"seed": 7}, {"cost": "flops"}, {"solver": "chen-sqrt"}, {"progress": LINES.append},
    {"progress": False}, {"loss": "all"}, {"optimizer": "adamw"}, {"optimizer": torch.optim.AdamW}, {"must_save": ("a",)},
    {"target": "h200"}, {"effort": "quick"}, {"cache": False}, {"parity": "close"}, {"unused": ("1",)},
    {"offload": "auto"}, {"offload": "auto", "host_budget": 2**30},
    {"time_limit": 3.5, "seed": 7, "cost": "unit", "loss": "all", "optimizer": "adam", "must_save": ("a",), "target": "h200",
     "parity": "close", "unused": ("1",)},
]  # fmt: skip


def sample(batch: int) -> torch.Tensor:
    return torch.ones(batch, 8)


def split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(options of a search, options of a capture)."""
    captured = {k: options[k] for k in GIVEN_TO_TRACE if k in options}
    return {k: x for k, x in options.items() if k not in captured}, captured


def checkpointed(path: Path, **options: Any) -> nn.Module:
    return rekindle.checkpoint(TwoResults(), sample(64), **options, minimize="memory", check=False)


def planned(path: Path, **options: Any) -> nn.Module:
    model = TwoResults()
    searched, captured = split(options)
    plan = rekindle.plan(rekindle.trace(model, sample(64), **captured), **searched, minimize="memory")
    return rekindle.apply(model, plan)


def planned_for_a_target(path: Path, **options: Any) -> nn.Module:
    model = TwoResults()
    searched, captured = split(options)
    target = captured.pop("target", None)
    trace = rekindle.trace(model, sample(64), **captured)
    return rekindle.apply(model, rekindle.plan(trace, **searched, target=target, minimize="memory"))


def of_a_frontier(path: Path, **options: Any) -> nn.Module:
    model = TwoResults()
    searched, captured = split(options)
    return rekindle.apply(model, rekindle.frontier(rekindle.trace(model, sample(64), **captured), **searched)[0])


def loaded(path: Path, **options: Any) -> nn.Module:
    planned(path, **options).forward.plan.save(path / "plan.json")  # type: ignore[union-attr]
    model = rekindle.apply(TwoResults(), rekindle.load(path / "plan.json"))
    step(model, sample(64))
    return model


def loaded_twice(path: Path, **options: Any) -> nn.Module:
    loaded(path, **options).forward.plan.save(path / "again.json")  # type: ignore[union-attr]
    model = rekindle.apply(TwoResults(), rekindle.load(path / "again.json"))
    step(model, sample(64))
    return model


def copied(path: Path, **options: Any) -> nn.Module:
    return copy.deepcopy(planned(path, **options))


def step(model: nn.Module, x: torch.Tensor) -> None:
    model(x)[0].backward()


@pytest.mark.parametrize("options", every(8, OPTIONS), ids=lambda o: ",".join(f"{k}" for k in o))
@pytest.mark.parametrize(
    "way", [checkpointed, planned, planned_for_a_target, of_a_frontier, loaded, loaded_twice, copied]
)
def test_a_plan_for_a_new_shape_has_the_options_of_the_first(
    way: Callable[..., nn.Module], options: dict[str, Any], tmp_path: Path
) -> None:
    if way is checkpointed:
        options = {k: x for k, x in options.items() if k != "target"}  # it measures on the device at hand
    if way is of_a_frontier:
        options = {k: x for k, x in options.items() if k not in ("offload", "host_budget")}  # its plans copy nothing
    given = {"solver": "storages", "time_limit": 2.0, "progress": False} | options
    model = way(tmp_path, **given)
    first = model.forward.plan  # type: ignore[union-attr]
    step(model, sample(16))
    bound = model.forward.last  # type: ignore[union-attr]
    assert bound.plan is not first
    new = bound.plan

    searched, captured = split(given)
    through_file = way in (loaded, loaded_twice)
    goal = {"goal": first.options.goal}
    for field in fields(PlanOptions):
        expected = (goal | searched).get(field.name, field.default)
        if field.name == "progress" and through_file:
            expected = None  # a function cannot be saved
        assert getattr(new.options, field.name) == expected, field.name
        assert getattr(first.options, field.name) == expected, field.name
    for field in fields(TraceOptions):
        expected = captured.get(field.name, field.default)
        if through_file and field.name == "optimizer" and expected is not None:
            expected = "adamw" if expected is torch.optim.AdamW else expected
        if through_file and field.name == "state_bytes" and captured.get("optimizer") is not None:
            expected = new.trace.state_bytes
        if field.name == "attention" and way is not planned_for_a_target:
            expected = captured.get("target")  # a capture for a GPU has its attention
        assert getattr(new.trace.options, field.name) == expected, field.name
    assert bool(new.trace.state_bytes) == ("optimizer" in options)
    assert (new.solver, new.cost) == (given["solver"], given.get("cost", "seconds"))


@pytest.mark.parametrize("time_limit", every(2, [np.float32(2), np.float64(2), np.int32(2), Fraction(2), 2]))
@pytest.mark.parametrize("seed", every(2, [np.int64(3), np.uint8(3), 3]))
def test_options_given_as_any_kind_of_number_are_saved(time_limit: Any, seed: Any, tmp_path: Path) -> None:
    trace = rekindle.trace(TwoResults(), sample(64), target="h200")
    for plan in (
        rekindle.plan(trace, minimize="memory", solver="chen-sqrt", time_limit=time_limit, seed=seed),
        rekindle.frontier(trace, solver="chen-sqrt", time_limit=time_limit, seed=seed)[0],
    ):
        plan.save(tmp_path / "plan.json")
        again = rekindle.load(tmp_path / "plan.json").options
        assert (again.time_limit, again.seed) == (2, 3)


def test_an_optimizer_named_with_spaces_around_it_is_saved(tmp_path: Path) -> None:
    trace = rekindle.trace(TwoResults(), sample(64), target="h200", optimizer=" AdamW\n")
    rekindle.plan(trace, minimize="memory", solver="chen-sqrt").save(tmp_path / "plan.json")
    again = rekindle.load(tmp_path / "plan.json").trace_options
    assert (again.optimizer, again.state_bytes) == ("AdamW", trace.state_bytes)
