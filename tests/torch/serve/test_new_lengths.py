"""Other lengths and batches in the middle of a run: eager's bits, the goal kept, few captures, and nothing left behind."""

from __future__ import annotations

import copy
import gc
import linecache
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rekindle
from marks import every, sweep
from rekindle.torch.capture import capture as capturing
from rekindle.torch.serve import bound_plans
from rekindle.torch.serve.bound_plans import BoundPlansSettings
from rekindle.torch.serve.refusals import FAILED_CALLS_MOST, Refusals

GOAL: dict[str, Any] = {"minimize": "memory", "solver": "storages", "effort": "quick"}
LENGTHS = (12, 17, 30, 9, 25, 1)
PLANS = BoundPlansSettings(plans_least=4, plans_most=16)


class Attention(nn.Module):
    """A causal transformer block with dropout and a loss, whose constants and shapes depend on the length in every way."""

    def __init__(self, change: Callable[[torch.Tensor, int], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(50, 16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.up, self.drop, self.head = nn.Linear(16, 16), nn.Dropout(0.1), nn.Linear(16, 50)
        self.change = change

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        h, n = self.embed(ids), ids.shape[1]
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
        h = self.drop(h + self.mix(h, h, h, attn_mask=mask, need_weights=False)[0])
        h = h + self.up(h.relu())
        if self.change is not None:
            h = self.change(h, n)
        return nn.functional.cross_entropy(self.head(h).flatten(0, 1), labels.flatten())


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 8, 3, stride=2), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.max_pool2d(self.norm(self.first(x)).relu(), 2)
        return self.head(self.second(h).relu().mean((2, 3))).square().mean()


def tokens(length: int) -> tuple[torch.Tensor, ...]:
    return torch.randint(0, 50, (4, length)), torch.randint(0, 50, (4, length))


def images(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 3, 12, 12),)


def pair(model: nn.Module, sample: tuple[torch.Tensor, ...], **goal: Any) -> tuple[nn.Module, nn.Module]:
    return model, rekindle.checkpoint(copy.deepcopy(model), sample, **(goal or GOAL))


def equal(plain: nn.Module, planned: nn.Module, given: tuple[torch.Tensor, ...]) -> bool:
    """Whether one step of each gives the same loss, gradients and buffers."""
    found = []
    for m in (plain, planned):
        m.zero_grad()
        torch.manual_seed(1)
        loss = m(*given)
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in m.parameters()), *m.buffers()])
    return all(map(torch.equal, *found))


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each capture."""
    made: list[int] = []
    capture = capturing._capture

    def counted(*args: Any) -> Any:
        made.append(1)
        return capture(*args)

    monkeypatch.setattr(capturing, "_capture", counted)
    return made


@pytest.mark.parametrize(("model", "sample", "captured_first"), every(2, [(Attention, tokens, 2), (Images, images, 2)]))
def test_steps_of_further_sizes_follow_without_a_capture(
    model: Any, sample: Any, captured_first: int, captures: list[int]
) -> None:
    plain, planned = pair(model(), sample(20))
    captures.clear()
    for count, size in enumerate(LENGTHS[:5]):
        assert equal(plain, planned, sample(size))
        bound = planned.forward.last
        assert bound is not None
        assert bound.trace.key[0][0][0][1 if sample is tokens else 0] == size
        assert len(captures) == min(count + 1, captured_first)
        captured = rekindle.trace(plain, sample(size), target="h200").graph
        captures.pop()
        followed = bound.trace.graph
        assert (captured.hash, captured.resident_bytes) == (followed.hash, followed.resident_bytes)
        assert [o.flops for o in captured.ops] == [o.flops for o in followed.ops]


@sweep
def test_a_length_of_one_is_captured(captures: list[int]) -> None:
    plain, planned = pair(Attention(), tokens(20))
    for length in LENGTHS:
        assert equal(plain, planned, tokens(length))
    assert equal(plain, planned, tokens(1))


def clamped(h: torch.Tensor, length: int) -> torch.Tensor:
    return h.clamp(max=1e6) if length > 28 else h  # another op, and the same bits


def other_constant(h: torch.Tensor, length: int) -> torch.Tensor:
    return h * (1.0 + (length > 28) * 2.0**-40)  # another constant, and the same bits


def other_operand(h: torch.Tensor, length: int) -> torch.Tensor:
    one, two = h + 0.0, h + 0.0
    return one + one if length > 28 else one + two  # another way through the same ops, and the same bits


def other_tensor(h: torch.Tensor, length: int) -> torch.Tensor:
    return h.clamp(max=torch.tensor(2e6 if length > 28 else 1e6))  # another tensor from nowhere, and the same bits


def from_numpy(h: torch.Tensor, length: int) -> torch.Tensor:
    return h.clamp(max=torch.from_numpy(np.full(1, 2e6 if length > 28 else 1e6, np.float32)))


@pytest.mark.parametrize("change", every(5, [clamped, other_constant, other_operand, other_tensor, from_numpy]))
def test_another_way_through_forward_is_seen_even_if_the_bits_are_equal(
    change: Callable[[torch.Tensor, int], torch.Tensor], captures: list[int]
) -> None:
    plain, planned = pair(Attention(change), tokens(20))
    for length in (12, 17, 25, 14, 9):
        assert equal(plain, planned, tokens(length))
    captures.clear()
    assert equal(plain, planned, tokens(30))
    assert len(captures) == 1
    bound = planned.forward.last
    assert bound is not None
    assert (
        bound.trace.graph.hash == rekindle.trace(plain, tokens(30), target="h200").graph.hash
        or change is other_constant
    )


@sweep
def test_steps_follow_where_one_known_length_goes_another_way(captures: list[int]) -> None:
    """As the longest length does, where an embedding of positions is read whole and not sliced."""
    plain, planned = pair(Attention(clamped), tokens(20))
    for length in (12, 30, 17, 25):
        assert equal(plain, planned, tokens(length))
    captures.clear()
    for length in (14, 9, 22):
        assert equal(plain, planned, tokens(length))
    assert not captures


class TwoScales(Attention):
    """Reads one attribute for short inputs and another, of the same value at first, for long ones."""

    def __init__(self) -> None:
        super().__init__()
        self.short = self.long = 0.75

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = super().forward(ids, labels)
        return loss * (self.long if ids.shape[1] > 28 else self.short)


@sweep
def test_an_attribute_that_only_some_lengths_read_is_guarded(captures: list[int]) -> None:
    plain, planned = pair(TwoScales(), tokens(20))
    for length in (12, 17, 25, 14, 9):
        assert equal(plain, planned, tokens(length))
    captures.clear()
    assert equal(plain, planned, tokens(30))
    assert len(captures) == 1
    for m in (plain, planned):
        m.long = 0.8
    assert equal(plain, planned, tokens(30))


@sweep
def test_the_memory_of_constants_can_be_resized_afterwards() -> None:
    """Constants of two lengths are compared by their bytes; `numpy()` on them would make memory that nothing can resize."""
    scale = torch.rand(16)
    model = Attention(change=lambda h, n: h * scale)
    rekindle.checkpoint(model, tokens(12), progress=False, **GOAL)
    for length in (17, 30, 9):
        model(*tokens(length)).backward()
    assert scale.untyped_storage().resizable()


def test_a_change_of_the_module_is_captured_again(captures: list[int]) -> None:
    plain, planned = pair(Attention(), tokens(20))
    for length in (12, 17, 25, 14, 9):
        assert equal(plain, planned, tokens(length))
    captures.clear()
    for m in (plain, planned):
        m.drop.p = 0.25
    assert equal(plain, planned, tokens(15))
    assert len(captures) == 1


@pytest.mark.parametrize(
    "goal", every(2, [{"max_overhead": 0.3}, {"minimize": "memory"}, {"budget": "1MiB"}, {"budget": 0.95}])
)
def test_other_goals_carry_over(goal: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    plain, planned = pair(Attention(), tokens(20), **goal, solver="storages", effort="quick")
    capfd.readouterr()
    assert equal(plain, planned, tokens(16))
    bound = planned.forward.last
    assert bound is not None
    if "max_overhead" in goal:
        assert bound.plan.overhead <= 0.3
    if goal.get("budget") == 0.95:
        assert bound.plan.activation_peak_bytes <= 0.95 * bound.plan.baseline_activation_bytes
    elif "budget" in goal:
        assert bound.plan.peak_bytes <= 2**20
    assert "carried over the plan of another shape" in capfd.readouterr().err


# -- memory ----------------------------------------------------------------------------------------------------------------
@sweep
def test_plans_that_made_room_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound_plans, "SETTINGS", PLANS)
    _, planned = pair(
        nn.Sequential(nn.Linear(4, 4), nn.Tanh()), (torch.randn(70, 4),), minimize="memory", solver="none"
    )
    planned(torch.randn(70, 4)).sum().backward()
    found: list[weakref.ref[Any]] = []
    for batch in range(2, 62):
        planned(torch.randn(batch, 4)).sum().backward()
        bound = planned.forward.last
        found += map(weakref.ref, (bound, bound.trace.graph, bound.runner.program))
        del bound
    gc.collect()
    alive = [r for r in found[1::3] if r() is not None]
    assert len(list(planned.forward.bounds)) == PLANS.plans_most
    assert sum(r() is not None for r in found[::3]) == PLANS.plans_most
    assert sum(r() is not None for r in found[2::3]) == PLANS.plans_most
    assert len(alive) <= PLANS.plans_most + 8  # captured steps from which others follow
    mine = {b.runner.program.file for b in planned.forward.bounds}
    del planned
    gc.collect()
    assert not mine & linecache.cache.keys()
    assert not [r for r in found if r() is not None]


def test_plans_of_large_graphs_make_room_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    _, planned = pair(nn.Linear(4, 4), (torch.randn(70, 4),), minimize="memory", solver="none")
    ops = len(planned.forward.plan.graph.ops)
    monkeypatch.setattr(bound_plans, "SETTINGS", BoundPlansSettings(plans_least=3, plans_most=9, ops_most=5 * ops))
    for batch in range(2, 12):
        planned(torch.randn(batch, 4)).sum().backward()
        assert len(list(planned.forward.bounds)) == min(batch, 5)
    monkeypatch.setattr(bound_plans, "SETTINGS", BoundPlansSettings(plans_least=3, plans_most=9, ops_most=1))
    planned(torch.randn(1, 4)).sum().backward()
    assert len(list(planned.forward.bounds)) == 3


@sweep
def test_a_step_whose_plan_made_room_is_not_captured_again(
    monkeypatch: pytest.MonkeyPatch, captures: list[int]
) -> None:
    monkeypatch.setattr(bound_plans, "SETTINGS", BoundPlansSettings(plans_least=2, plans_most=2))
    plain, planned = pair(Attention(), tokens(20))
    for length in (12, 17):
        assert equal(plain, planned, tokens(length))
    captures.clear()
    for length in (20, 12, 17):
        assert equal(plain, planned, tokens(length))
        assert planned.forward.last.trace.key[0][0][0][1] == length
    assert not captures
    for m in (plain, planned):
        m.drop.p = 0.25
    assert equal(plain, planned, tokens(20))
    assert len(captures) == 1


def test_calls_that_cannot_be_planned_are_remembered_up_to_a_number() -> None:
    model = nn.Linear(2, 2)
    planned = rekindle.checkpoint(nn.Linear(2, 2), torch.randn(3, 2), minimize="memory", solver="none")
    refusals = Refusals(planned.forward._replanner.plans)
    for k in range(FAILED_CALLS_MOST + 10):
        refusals.add(model, ((k,), (), ()), ("", ""))
    assert len(refusals._failed) == FAILED_CALLS_MOST
    assert refusals.hold(model, ((20,), (), ()))
    assert not refusals.hold(model, ((0,), (), ()))


def test_plans_of_lengths_that_follow_notice_a_change_of_the_module(captures: list[int]) -> None:
    plain, planned = pair(Attention(), tokens(20))
    for size in LENGTHS[:4]:
        assert equal(plain, planned, tokens(size))
    for share in (0.5, 0.1):
        plain.drop.p = planned.drop.p = share
        captures.clear()
        assert all(equal(plain, planned, tokens(size)) for size in (*LENGTHS[:4], 20))
        assert bool(captures) == (share == 0.5)  # the plans for the first state serve again
