"""Branches of forward on values: as eager takes them, and taken anew where the values of a later call lead elsewhere."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import rekindle
from branching import ONES, PADDED, Linear, Masked, gradients, masked, ops
from marks import sweep
from rekindle.errors import PlanMismatch, TraceError
from rekindle.torch.capture import capture
from rekindle.torch.measure.as_before import same
from rekindle.torch.serve import refusals
from rekindle.torch.tensors import tree
from strategies import examples


def test_a_branch_is_taken_as_eager_takes_it() -> None:
    model, x = masked()
    whole, padded = (rekindle.trace(model, (x, m)).graph for m in (ONES, PADDED))
    assert (ops(whole, "mul"), ops(padded, "mul")) == (0, 3)
    assert (ops(whole, "add"), ops(padded, "add")) == (1, 1)
    for m in (ONES, PADDED):
        assert rekindle.verify(
            model, (x, m), rekindle.plan(rekindle.trace(model, (x, m)), minimize="memory", solver="storages")
        ).ok


class Chooses(nn.Module):
    """Looks at what it computes, unless it is being compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        return h.relu() if torch.compiler.is_compiling() or bool((h > -100).all()) else h


def test_only_submodules_that_fail_are_told_that_they_are_compiled() -> None:
    model, x = masked()
    model.linears[1] = Chooses()
    for mask in (ONES, PADDED):
        sample = (x, mask)
        assert rekindle.verify(
            model, sample, rekindle.plan(rekindle.trace(model, sample), minimize="memory", solver="storages")
        ).ok
    assert not torch.compiler.is_compiling()


class AsksInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g if torch.compiler.is_compiling() or bool((g > -100).all()) else g + 1


def test_what_asks_in_backward_is_told() -> None:
    model, sample = Linear(lambda h, x, ids: AsksInBackward.apply(h).mean()), (torch.randn(4, 4), torch.arange(4))
    assert rekindle.verify(
        model, sample, rekindle.plan(rekindle.trace(model, sample), minimize="memory", solver="storages")
    ).ok


def test_a_second_try_keeps_nothing_alive() -> None:
    model, x = masked()
    model.linears[1] = Chooses()
    sample = x, ONES.clone()
    gone = weakref.ref(model), weakref.ref(sample[1])
    gc.disable()
    try:
        capture.capture(model, model.forward, *tree.flatten((sample, {})))
        del model, sample
        assert [g() for g in gone] == [None, None]
    finally:
        gc.enable()


def test_a_model_that_fails_in_its_own_forward_is_told() -> None:
    model, sample = Chooses(), torch.randn(4, 8)
    assert rekindle.verify(
        model, sample, rekindle.plan(rekindle.trace(model, sample), minimize="memory", solver="storages")
    ).ok


@examples(20)
@given(st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_whatever_the_mask_holds_the_bits_are_those_of_eager(drawn: list[int]) -> None:
    model, x = masked()
    twin = rekindle.checkpoint(copy.deepcopy(model), (x, ONES), minimize="memory", solver="storages")
    for mask in (ONES, torch.tensor(drawn).view(2, 4), PADDED, ONES):
        assert all(map(same, gradients(twin, x, mask), gradients(model, x, mask)))


def test_each_branch_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []
    trace_call = refusals.trace_call
    monkeypatch.setattr(refusals, "trace_call", lambda *a, **k: traced.append(1) or trace_call(*a, **k))
    model, x = masked()
    rekindle.checkpoint(model, (x, PADDED), minimize="memory", solver="storages")
    for mask in (PADDED, ONES, PADDED, ONES, PADDED * 2):
        gradients(model, x, mask)
    assert len(traced) == 1


def test_a_branch_without_a_plan() -> None:
    model, x = masked()
    plan = rekindle.plan(rekindle.trace(model, (x, ONES)), minimize="memory", solver="storages")
    rekindle.apply(model, plan, on_new_shape="error")
    model(x, ONES)
    with pytest.raises(PlanMismatch, match="values"):
        model(x, PADDED)
    rekindle.apply(model, plan, on_new_shape="plain")
    with pytest.warns(UserWarning, match="no plan"):
        model(x, PADDED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(x, PADDED)


def masked_unless_whole(h: Tensor, x: Tensor, mask: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or not mask.all():
        h = h * mask[..., None]
    return h.square().mean()


@pytest.mark.parametrize("mask", [ONES, PADDED])
def test_a_plan_made_without_data_is_bound_to_what_is_right_for_all(mask: Tensor, tmp_path: Path) -> None:
    def made() -> tuple[Linear, Tensor]:
        torch.manual_seed(0)
        return Linear(masked_unless_whole), torch.randn(2, 4, 4)

    with FakeTensorMode():
        model, x = made()
        plan = rekindle.plan(
            rekindle.trace(model, (x, torch.ones(2, 4, dtype=torch.int64))), minimize="memory", solver="storages"
        )
    plan.save(tmp_path / "plan.json")
    model, x = made()
    expected = gradients(model, x, mask)
    rekindle.apply(model, rekindle.load(tmp_path / "plan.json"), on_new_shape="error")
    torch.testing.assert_close(gradients(model, x, mask), expected)


@sweep
def test_a_plan_from_a_file_whose_first_call_answers_otherwise(tmp_path: Path) -> None:
    """The plan waits for a call like the one it was made for; until then calls are as any others without a plan."""
    model, x = masked()
    rekindle.plan(rekindle.trace(model, (x, ONES)), minimize="memory", solver="storages").save(tmp_path / "plan.json")
    plan = rekindle.load(tmp_path / "plan.json")
    expected = {mask: gradients(model, x, mask) for mask in (ONES, PADDED)}
    rekindle.apply(model, plan, on_new_shape="error")
    with pytest.raises(PlanMismatch):
        model(x, PADDED)
    rekindle.apply(model, plan)
    for mask in (PADDED, ONES, PADDED):
        assert all(map(same, gradients(model, x, mask), expected[mask]))
    assert {b.plan is plan for b in model.forward.bounds} == {True, False}


@sweep
def test_a_plan_from_a_file_that_waits_does_not_trace_the_same_call_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = masked()
    rekindle.plan(rekindle.trace(model, (x, ONES)), minimize="memory", solver="storages").save(tmp_path / "plan.json")
    traced = []
    trace_call = refusals.trace_call
    monkeypatch.setattr(refusals, "trace_call", lambda *a, **k: traced.append(1) or trace_call(*a, **k))
    rekindle.apply(model, rekindle.load(tmp_path / "plan.json"), on_new_shape="plain")
    with pytest.warns(UserWarning, match="run plain"):
        model(x, PADDED)
    before = len(traced)
    model(x, PADDED)
    assert len(traced) == before
    model(x, ONES)
    assert model.forward.last is not None


@sweep
def test_a_submodule_that_asks_may_come_later() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.inner = nn.Linear(8, 8), nn.Identity()

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            h = self.linear(x)
            return (self.inner(h, mask) if isinstance(self.inner, Masked) else h).square().mean()

    x, model = torch.randn(2, 4, 8), Outer()
    rekindle.checkpoint(model, (x, ONES), minimize="memory", solver="storages")
    model(x, PADDED)
    model.inner = Masked()
    for mask in (ONES, PADDED):
        found = gradients(model, x, mask)
        assert all(map(same, found, gradients(rekindle.restore(copy.deepcopy(model)), x, mask)))


@sweep
def test_calls_without_data_are_not_asked() -> None:
    model, x = masked()
    rekindle.checkpoint(model, (x, ONES), minimize="memory", solver="storages")
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model(torch.randn(2, 4, 8), torch.ones(2, 4, dtype=torch.int64)).shape == ()


def row_by_row(h: Tensor, x: Tensor, mask: Tensor) -> Tensor:
    for row in mask:
        h = h.sin() if bool(row.any()) else h.cos()
    return h.square().mean()


@sweep
def test_plans_for_other_values_are_not_made_without_end() -> None:
    model, x = Linear(row_by_row), torch.randn(2, 4, 4)
    masks = [torch.tensor([[k >> i & 1] for i in range(4)]) for k in range(12)]
    rekindle.checkpoint(model, (x, masks[0]), minimize="memory", solver="storages")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for mask in masks:
            gradients(model, x, mask)
    assert len(told) == 1
    assert "run plain" in str(told[0].message)
    assert told[0].filename == gradients.__code__.co_filename  # where the user called the model
    assert len(list(model.forward.bounds)) == refusals.WASTED_PLANS_MOST


def test_an_answer_that_forward_keeps_is_no_plan() -> None:
    """The first call's answer would have served every mask."""

    class Keeps(Masked):
        whole: bool | None = None

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            if self.whole is None:
                self.whole = bool(mask.all())
            h = self.linears[0](x)
            return h.mean() if self.whole else h.sum()

    torch.manual_seed(0)
    with pytest.raises(TraceError, match="whole"):
        rekindle.trace(Keeps(), (torch.randn(2, 4, 8), ONES))
