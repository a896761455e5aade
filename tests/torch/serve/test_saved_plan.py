"""A saved plan in place of a new one: used where the model, the shapes and the options are the same, and nowhere else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from asked import searches
from marks import every, sweep
from models_in_parts import differing, routed, train
from pairs import Net
from rekindle.integrations.saved_plan import checkpoint_with
from rekindle.model.formats import as_text
from steps_compared import QUICK, assert_same_steps, plans

OPTIONS = {**QUICK, "progress": False}


def sample(rows: int = 8) -> torch.Tensor:
    return torch.rand(rows, 16, generator=torch.Generator().manual_seed(0))


def text_of(model: nn.Module) -> str:
    plan: Any = model.forward.plan
    return as_text(plan.to_json())


def saved(**options: Any) -> str:
    return text_of(rekindle.checkpoint(Net(), sample(), **{**OPTIONS, **options}))


def test_a_plan_for_the_same_is_used_without_a_search() -> None:
    text, model = saved(on_new_shape="error"), Net()
    twin = copy.deepcopy(model)
    with searches("storages") as asked:
        assert checkpoint_with(text, model, sample(), {**OPTIONS, "on_new_shape": "error"}) == ""
    assert not asked
    assert text_of(model) == text
    assert_same_steps(model, twin, lambda i: sample())
    assert plans(model) == 1
    with pytest.raises(rekindle.PlanMismatch):  # the option is in force
        model(sample(3))


def test_the_first_call_may_have_another_shape_than_the_plan() -> None:
    """The sample is the longest batch; training may begin with a shorter one."""
    text, model = saved(), Net()
    twin = copy.deepcopy(model)
    assert checkpoint_with(text, model, sample(), OPTIONS) == ""
    assert_same_steps(model, twin, lambda i: sample(4 if i == 0 else 8))
    assert plans(model) == 2


def test_plans_of_parts_that_were_found() -> None:
    torch.manual_seed(0)
    model, batch = routed()
    twin, again = copy.deepcopy(model), copy.deepcopy(model)
    options = {"minimize": "memory", "effort": "quick", "cost": "flops", "progress": False}
    text = text_of(rekindle.checkpoint(model, batch, **options))
    with searches("auto") as asked:
        assert checkpoint_with(text, again, batch, options) == ""
    assert not asked
    assert [p.path for p in again.forward.plan.parts] == [p.path for p in model.forward.plan.parts]
    assert differing(train(again, batch), train(twin, batch)) == 0


@pytest.mark.parametrize(
    ("model", "rows", "options", "says"),
    every(
        4,
        [
            (Net, 8, {"max_overhead": 0.2, "minimize": None}, "another goal"),
            (Net, 8, {"solver": "feng", "seed": 1}, "another seed and solver"),
            (Net, 8, {"optimizer": "adamw"}, "another optimizer"),
            (Net, 8, {"must_save": "head"}, "another must_save"),
            (Net, 8, {"parity": "close"}, "another parity"),
            (Net, 9, {}, "for another graph"),
            (lambda: Net(width=16).eval(), 8, {}, "for another graph"),
            (Net, 8, {"parts": "blocks.*"}, "not for its parts"),
        ],
    ),
)
def test_a_plan_for_something_else_is_made_anew(model: Any, rows: int, options: Any, says: str) -> None:
    net = model()
    twin = copy.deepcopy(net)
    assert says in checkpoint_with(saved(), net, sample(rows), {**OPTIONS, **options})
    assert (
        net.forward.plan.options.goal
        == rekindle.checkpoint(twin, sample(rows), **{**OPTIONS, **options}).forward.plan.options.goal
    )
    assert net.forward.plan.options.seed == options.get("seed", 0)


class Answering(Net):
    def forward(self, x: torch.Tensor) -> Any:
        y = super().forward(x)
        return {"loss": y.square().mean(), "y": y}


@sweep
def test_a_plan_without_some_results_is_used_for_a_loop_that_does_not_read_them() -> None:
    options, first, model = {**OPTIONS, "unused": ["y"]}, Answering(), Answering()
    text = text_of(rekindle.checkpoint(first, sample(), **options))
    assert checkpoint_with(text, model, sample(), options) == ""
    assert model(sample())["y"] is None
    assert "another unused" in checkpoint_with(text, model, sample(), OPTIONS)
    assert model(sample())["y"] is not None


@sweep
def test_a_plan_beside_another_state_of_the_optimizer_is_made_anew() -> None:
    """The name of the optimizer is the same, and AMSGrad holds one tensor more for each parameter."""
    text, net = saved(optimizer="adamw"), Net()
    options = {**OPTIONS, "optimizer": torch.optim.AdamW(net.parameters(), amsgrad=True)}
    assert "holds other bytes" in checkpoint_with(text, net, sample(), options)


@sweep
def test_a_plan_of_parts_is_not_used_for_other_parts_or_the_whole() -> None:
    text = saved(parts="blocks.*", cost="flops")
    assert "for other parts" in checkpoint_with(
        text, Net(), sample(), {**OPTIONS, "cost": "flops", "parts": "blocks.0"}
    )
    assert "can be captured whole" in checkpoint_with(text, Net(), sample(), {**OPTIONS, "cost": "flops"})


def test_a_step_beyond_the_budget_here_is_made_anew() -> None:
    """A plan that was made without the bytes that a loop holds beside its graph: its figures agree, its step takes more."""
    options = {**OPTIONS, "minimize": None}
    traced = rekindle.trace(Net(), sample(512))
    bare = rekindle.plan(
        traced.graph, traced.graph.resident_bytes + 250_000, **{k: options[k] for k in ("solver", "time_limit")}
    )
    budget = bare.peak_bytes  # no room is left, however good a plan was found in the time
    document = bare.to_json() | {"goal": bare.goal.to_json() | {"budget": budget}}
    net, says = Net(), "above the budget"
    assert says in checkpoint_with(as_text(document), net, sample(512), {**options, "budget": budget})
    assert checkpoint_with(text_of(net), Net(), sample(512), {**options, "budget": budget}) == ""


@pytest.mark.parametrize(
    "damage", every(3, [lambda t: t[:-5], lambda t: t.replace('"peak_bytes": ', '"peak_bytes": 1'), lambda t: "[]"])
)
def test_a_damaged_file_is_no_error(damage: Any) -> None:
    model = Net()
    assert checkpoint_with(damage(saved()), model, sample(), OPTIONS)
    assert model.forward.plan is not None


def test_errors_of_the_new_plan_are_raised() -> None:
    model = Net()
    with pytest.raises(rekindle.UsageError, match="unknown"):
        checkpoint_with(None, model, sample(), {**OPTIONS, "solver": "none such"})
    assert "forward" not in model.__dict__
