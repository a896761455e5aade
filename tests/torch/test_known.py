"""Branches of forward on values: as eager takes them, and taken anew where the values of a later call lead elsewhere."""

from __future__ import annotations

import copy
import functools
import gc
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import rekindle
from rekindle.errors import PlanMismatch, TraceError
from rekindle.torch.capture import capture, tree
from rekindle.torch.capture.known_values import KnownValues
from rekindle.torch.check.verify import same
from rekindle.torch.run import new_call, refusals
from strategies import examples


class Masked(nn.Module):
    """Leaves a mask out where it masks nothing, as libraries do; and asks one that it makes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)[None]
        if not torch.compiler.is_compiling() and (positions.diff() == 1).all():
            x = x + 1
        whole = not torch.compiler.is_compiling() and bool(mask[:, : x.shape[1]].all())
        for linear in self.linears:
            x = torch.tanh(linear(x))
            if not whole:
                x = x * mask[..., None]
        return x.square().mean()


def masked() -> tuple[Masked, Tensor]:
    torch.manual_seed(0)
    return Masked(), torch.randn(2, 4, 8)


class Linear(nn.Module):
    """A linear layer, and what a function makes of its result and the inputs."""

    def __init__(self, then: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.then = nn.Linear(4, 4), then

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return self.then(self.linear(x), x, ids)


ONES = torch.ones(2, 4, dtype=torch.int64)
PADDED = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


def gradients(model: nn.Module, x: Tensor, mask: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss = model(x, mask)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def ops(graph: rekindle.Graph, what: str) -> int:
    return sum(f"aten.{what}." in op.name and not op.backward for op in graph.ops)


def checked(model: nn.Module, sample: Any) -> bool:
    """Whether a step by a plan for the least memory passes the check."""
    plan = rekindle.plan(rekindle.trace(model, sample), minimize="memory", solver="storages")
    return rekindle.verify(model, sample, plan).ok


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
    trace_call = new_call.trace_call
    monkeypatch.setattr(new_call, "trace_call", lambda *a, **k: traced.append(1) or trace_call(*a, **k))
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


def test_a_plan_from_a_file_that_waits_does_not_trace_the_same_call_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = masked()
    rekindle.plan(rekindle.trace(model, (x, ONES)), minimize="memory", solver="storages").save(tmp_path / "plan.json")
    traced = []
    trace_call = new_call.trace_call
    monkeypatch.setattr(new_call, "trace_call", lambda *a, **k: traced.append(1) or trace_call(*a, **k))
    rekindle.apply(model, rekindle.load(tmp_path / "plan.json"), on_new_shape="plain")
    with pytest.warns(UserWarning, match="run plain"):
        model(x, PADDED)
    before = len(traced)
    model(x, PADDED)
    assert len(traced) == before
    model(x, ONES)
    assert model.forward.last is not None


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


def test_calls_without_data_are_not_asked() -> None:
    model, x = masked()
    rekindle.checkpoint(model, (x, ONES), minimize="memory", solver="storages")
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model(torch.randn(2, 4, 8), torch.ones(2, 4, dtype=torch.int64)).shape == ()


def row_by_row(h: Tensor, x: Tensor, mask: Tensor) -> Tensor:
    for row in mask:
        h = h.sin() if bool(row.any()) else h.cos()
    return h.square().mean()


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
    assert Path(told[0].filename) == Path(__file__)
    assert len(list(model.forward.bounds)) == refusals.MOST


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


def asks(how: str, h: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    seen = torch.zeros(4, dtype=torch.int64)
    if how == "number":
        return h.mean() * int(ids.sum())
    if how == "written":
        seen.view(2, 2).add_(h.detach().long().view(-1)[:4].view(2, 2))
    if how == "shared":
        torch.empty(0, dtype=seen.dtype).set_(seen).add_(ids)
    if how == "copied":
        copy.copy(seen).add_(ids)
    if how == "exchanged":
        torch.utils.swap_tensors(seen, torch.ones_like(ids))
    if how == "random":
        seen = torch.randint(0, 9, (4,))
    if how == "unknown op":
        seen = torch.ops.rekindle_tests.drawn(4)
    if how == "float":
        seen = h > 0
    return h.mean() if bool((seen == 0).all()) else h.sum()


@torch.library.custom_op("rekindle_tests::drawn", mutates_args=())
def drawn(n: int) -> Tensor:
    return torch.randint(0, 9, (n,))  # and does not say that it is random


@drawn.register_fake
def _(n: int) -> Tensor:
    return torch.empty(n, dtype=torch.int64)


@pytest.mark.parametrize("how", ["number", "written", "shared", "copied", "exchanged", "random", "unknown op", "float"])
def test_what_may_differ_in_every_call_is_not_known(how: str) -> None:
    with pytest.raises(TraceError):
        rekindle.trace(Linear(functools.partial(asks, how)), (torch.randn(4, 4), torch.arange(4)))


@pytest.mark.parametrize("how", ["written", "shared", "random", "unknown op", "float"])
def test_what_was_written_to_is_not_known_of_fake_tensors(how: str) -> None:
    with FakeTensorMode(), KnownValues((), None):
        x, ids = torch.randn(4, 4), torch.arange(4)
        with pytest.raises(DataDependentOutputException):
            asks(how, x, x, ids)


def test_what_is_only_read_stays_known() -> None:
    with FakeTensorMode(), KnownValues((), None):
        mask, x = torch.ones(4, dtype=torch.bool), torch.randn(4)
        x.masked_fill_(mask, 1.0)
        x.copy_(mask)
        torch.logical_or(mask, mask, out=torch.empty(4, dtype=torch.bool))
        assert bool(mask.all())


def test_another_memory_at_the_same_address_is_not_known() -> None:
    with FakeTensorMode(), KnownValues((), None):
        mask = torch.ones(4, dtype=torch.bool)
        mask.data = torch.zeros(4, dtype=torch.bool)
        later = [torch.zeros(4, dtype=torch.bool) for _ in range(64)]
        for other in later:
            mask.data = other
            with pytest.raises(DataDependentOutputException):
                bool(mask.all())


def test_values_of_fake_tensors_are_known_while_they_live_and_no_longer() -> None:
    with FakeTensorMode(), KnownValues((), None):
        seen = torch.arange(4)
        assert bool((seen == torch.arange(4)).all())
        gone = weakref.ref(seen)
        del seen
        gc.collect()
        assert gone() is None


MADE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "zeros": lambda x, ids: torch.zeros(4, dtype=torch.int64),
    "like": lambda x, ids: torch.zeros_like(x, dtype=torch.int64),
    "new": lambda x, ids: x.new_zeros(3, dtype=torch.bool),
    "large view": lambda x, ids: (ids[:, None, None].expand(4, 2**15, 2**15), ids < 0)[1],
    "after a write": lambda x, ids: (torch.zeros(3).fill_(2), ids < 0)[1],
    "long": lambda x, ids: functools.reduce(lambda a, _: a * 2, range(500), ids * 0),
}


@pytest.mark.parametrize("how", MADE)
def test_what_is_known(how: str) -> None:
    def mean_or_sum(h: Tensor, x: Tensor, ids: Tensor) -> Tensor:
        return h.mean() if bool((MADE[how](x, ids) == 0).all()) else h.sum()

    model, sample = Linear(mean_or_sum), (torch.randn(4, 4), torch.arange(4))
    trace = rekindle.trace(model, sample)
    assert ops(trace.graph, "mean") == 1
    assert rekindle.verify(model, sample, rekindle.plan(trace, minimize="memory", solver="storages")).ok
