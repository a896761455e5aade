"""Calls that are not what was planned for are never wrong and never silent; a failed call changes nothing."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

import rekindle
from marks import every
from rekindle import PlanMismatch, UsageError
from rekindle.torch.serve.planned import PlannedForward
from test_execute import Net, TwoResults, equal_gradients, tight


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Parameters, buffers, gradients, forward and RNG state are the same before and after."""
    state = {k: v.clone() for k, v in model.state_dict().items()}
    grads = [p.grad for p in model.parameters()]
    attributes = {m: set(m.__dict__) for m in model.modules()}
    forward = model.__dict__.get("forward")
    rng = torch.get_rng_state()
    yield
    assert torch.equal(rng, torch.get_rng_state())
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
    assert all(set(m.__dict__) == a for m, a in attributes.items())
    assert model.__dict__.get("forward") is forward


@functools.cache
def _planned_pair(on_new_shape: str) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain = Net()
    planned = copy.deepcopy(plain)
    return plain, rekindle.apply(planned, tight(rekindle.trace(planned, torch.rand(32, 16))), on_new_shape)


def planned_pair(on_new_shape: str = "plan") -> tuple[nn.Module, nn.Module]:
    return copy.deepcopy(_planned_pair(on_new_shape))


def step_equal(plain: nn.Module, planned: nn.Module, x: torch.Tensor) -> bool:
    outs = []
    for m in (plain, planned):
        torch.manual_seed(1)
        outs.append(m(x))
        outs[-1].square().mean().backward()
    return torch.equal(*outs) and equal_gradients(plain, planned)


def test_a_new_shape_is_planned_anew_once() -> None:
    plain, planned = planned_pair("plan")
    for _ in range(2):
        assert step_equal(plain, planned, torch.rand(20, 16))
    assert len(list(planned.forward.bounds)) == 2
    assert planned.forward.last.plan.goal == planned.forward.plan.goal


def test_a_new_shape_runs_plain_with_one_warning() -> None:
    plain, planned = planned_pair("plain")
    with pytest.warns(UserWarning, match=r"\[20, 16\].*no plan"):
        assert step_equal(plain, planned, torch.rand(20, 16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step_equal(plain, planned, torch.rand(20, 16))
        assert step_equal(plain, planned, torch.rand(21, 16))


def test_a_new_shape_is_an_error_where_that_was_asked() -> None:
    _, planned = planned_pair("error")
    with untouched(planned), pytest.raises(PlanMismatch, match=r"\[20, 16\]"):
        planned(torch.rand(20, 16, generator=torch.Generator()))


def test_an_unknown_policy_is_refused() -> None:
    model = Net()
    plan = tight(rekindle.trace(model, torch.rand(32, 16)))
    with untouched(model), pytest.raises(UsageError, match="plan, plain, error"):
        rekindle.apply(model, plan, on_new_shape="guess")


@pytest.mark.parametrize("change", every(2, ["eval_part", "freeze", "dtype", "input_grad"]))
def test_what_else_shapes_the_graph_is_planned_anew(change: str) -> None:
    plain, planned = planned_pair()
    x = torch.rand(32, 16)
    for m in (plain, planned):
        if change == "eval_part":
            m.blocks[1].eval()
        elif change == "freeze":
            m.blocks[0].requires_grad_(False)
        elif change == "dtype":
            m.double()
    if change == "dtype":
        x = x.double()
    x.requires_grad_(change == "input_grad")
    assert step_equal(plain, planned, x)
    assert len(list(planned.forward.bounds)) == 2


def test_autocast_is_part_of_the_signature() -> None:
    plain, planned = planned_pair()
    x = torch.rand(32, 16)
    with torch.autocast("cpu", torch.bfloat16):
        assert step_equal(plain, planned, x)
    assert step_equal(plain, planned, x)
    assert len(list(planned.forward.bounds)) == 2


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0, square: bool = False) -> torch.Tensor:
        h = self.layer(x) * scale
        return h.square() if square else h


def test_constants_among_the_arguments_are_part_of_the_signature() -> None:
    plain = Scaled()
    x = torch.rand(3, 4)
    planned = rekindle.apply(copy.deepcopy(plain), tight(rekindle.trace(plain, {"x": x, "scale": 2.0})))
    for kwargs in ({"scale": 2.0}, {"scale": 3.0}, {"square": True}, {}):
        assert torch.equal(plain(x=x, **kwargs), planned(x=x, **kwargs))
    assert torch.equal(plain(x, 5.0), planned(x, 5.0))


def test_a_plan_from_a_file_is_bound_at_the_first_call(tmp_path: Path) -> None:
    plain, planned = planned_pair()
    planned.forward.plan.save(tmp_path / "plan.json")
    fresh = copy.deepcopy(plain)
    plan = rekindle.load(tmp_path / "plan.json")
    rekindle.apply(fresh, plan)
    assert fresh.forward.source == ""
    assert step_equal(plain, fresh, torch.rand(32, 16))
    assert fresh.forward.last.plan is plan
    assert step_equal(plain, fresh, torch.rand(8, 16))  # from then on a new shape is a new shape
    check = rekindle.verify(fresh, torch.rand(32, 16), rekindle.load(tmp_path / "plan.json"))
    assert check.ok


def test_a_plan_from_a_file_for_another_batch_is_refused(tmp_path: Path) -> None:
    plain, planned = planned_pair()
    planned.forward.plan.save(tmp_path / "plan.json")
    fresh = rekindle.apply(copy.deepcopy(plain), rekindle.load(tmp_path / "plan.json"))
    x = torch.rand(31, 16)
    with untouched(fresh), pytest.raises(PlanMismatch) as e:
        fresh(x)
    text = str(e.value)
    assert planned.forward.plan.graph_hash[:12] in text
    assert rekindle.trace(plain, x).graph.hash[:12] in text
    assert "f32[31,16]" in text
    assert "f32[32,16]" in text
    assert step_equal(plain, fresh, torch.rand(32, 16))  # what it was planned for still binds it


def test_another_modules_plan_is_refused_at_once() -> None:
    plan = tight(rekindle.trace(TwoResults(), torch.rand(4, 8)))
    model = Net()
    with untouched(model), pytest.raises(PlanMismatch, match="TwoResults.*trunk.weight.*Net"):
        rekindle.apply(model, plan)


def test_a_new_plan_takes_the_place_of_the_old() -> None:
    plain, planned = planned_pair()
    rekindle.apply(planned, rekindle.plan(rekindle.trace(planned, torch.rand(32, 16)), 1.0, solver="none"))
    assert isinstance(planned.forward, PlannedForward)
    assert planned.forward.plan.solver == "none"
    assert step_equal(plain, planned, torch.rand(32, 16))
    assert "forward" not in rekindle.restore(planned).__dict__


def test_a_model_traced_in_eval_mode_trains_by_its_plan_there() -> None:
    plain = Net().eval()
    planned = rekindle.apply(copy.deepcopy(plain), tight(rekindle.trace(plain, torch.rand(32, 16))))
    assert step_equal(plain, planned, torch.rand(32, 16))
    assert planned.forward.last is not None
