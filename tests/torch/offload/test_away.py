"""Copies to the host and back are exact however late, slow or out of order they come, and leave nothing behind."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import rekindle
from copy_engines import FailingEngine, LateEngine, ShuffledEngine, SlowEngine, train
from pairs import both, equal_gradients
from rekindle import RekindleError
from rekindle.structure.copying import Copying
from rekindle.torch.measure import memory as measure
from rekindle.torch.offload import away
from rekindle.torch.offload.away import Away, HostPool
from rekindle.torch.run.program import build


class Attention(nn.Module):
    """Blocks whose q, k and v are views of one storage, with dropout."""

    def __init__(self, width: int = 32, blocks: int = 3):
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(blocks))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = qkv(x).chunk(3, dim=-1)
            x = x + nn.functional.dropout(out(torch.softmax(q @ k.transpose(-1, -2), -1) @ v), 0.1)
        return x


@functools.cache
def planned() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    plain, x = Attention(), torch.rand(4, 48, 32)
    ours = copy.deepcopy(plain)
    plan = rekindle.plan(rekindle.trace(ours, x), minimize="memory", offload=True)
    assert plan.schedule.moves
    return plain, rekindle.apply(ours, plan), x


@pytest.fixture
def twins() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    return copy.deepcopy(planned())


@pytest.mark.parametrize("engine", [LateEngine, SlowEngine, ShuffledEngine])
def test_the_numbers_are_eagers_whenever_copies_run(
    twins: Any, engine: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = engine()
    monkeypatch.setattr(away, "engine_of", lambda device: used)
    theirs, ours = both(twins, train)
    assert torch.equal(theirs, ours)


@pytest.mark.parametrize("edge", ["gone", "arrived"])
def test_an_edge_that_is_left_out_is_seen(twins: Any, edge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it these tests would prove nothing."""
    monkeypatch.setattr(away, "engine_of", lambda device: LateEngine())
    real = getattr(Away, edge)

    def without(self: Away, value: int, *more: Any) -> None:
        kept = self._copies[value]
        waits = [(e, e.wait) for e in (kept.left, kept.there) if e is not None]
        for e, _ in waits:
            e.wait = lambda: None  # type: ignore[method-assign]
        if kept.there is not None:
            kept.there._run = None  # type: ignore[attr-defined]  # it would write to memory that is another's by then
        real(self, value, *more)
        for e, wait in waits:
            e.wait = wait  # type: ignore[method-assign]

    monkeypatch.setattr(Away, edge, without)
    theirs, ours = both(twins, train)
    assert not torch.equal(theirs, ours)


def test_a_failed_copy_is_an_error_and_the_next_step_is_right(twins: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, ours, x = twins
    with monkeypatch.context() as m:
        broken = FailingEngine()
        m.setattr(away, "engine_of", lambda device: broken)
        with pytest.raises(OSError, match="the link is down"):
            ours(x).square().mean().backward()
    ours.zero_grad()
    both(twins, lambda m, x: m(x).square().mean().backward())
    assert equal_gradients(plain, ours)


def blocks(pool: HostPool) -> tuple[int, int]:
    """(bytes of all blocks, blocks that no step uses)."""
    gc.collect()
    return pool._total, len(pool._idle)


def test_steps_that_end_in_any_way_give_their_block_back(twins: Any) -> None:
    _, ours, x = twins
    pool = away.pool_of(ours, torch.device("cpu"))
    ours(x).square().mean().backward()
    before = blocks(pool)
    ours(x)  # no backward
    assert blocks(pool) == before
    loss = ours(x).square().mean()
    loss.backward(retain_graph=True)
    del loss
    assert blocks(pool) == before
    hook = ours.qkv[1].weight.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ours(x).square().mean().backward()
    hook.remove()
    torch.ones(1, requires_grad=True).sum().backward()  # autograd holds on to a failed backward until the next one
    assert blocks(pool) == before
    ours(x).square().mean().backward()
    assert blocks(pool) == before


def test_two_hundred_steps_take_no_more_memory_than_the_first_ones(twins: Any) -> None:
    _, ours, x = twins
    pool = away.pool_of(ours, torch.device("cpu"))

    def level() -> tuple[int, int, int]:
        gc.collect()
        alive = sum(isinstance(o, Away | torch.Tensor) for o in gc.get_objects())
        return (*blocks(pool), alive)

    for _ in range(3):
        ours(x).square().mean().backward()
    before = level()
    for _ in range(200):
        ours(x).square().mean().backward()
    assert level() == before


def test_a_second_step_in_progress_takes_a_second_block_or_stays_on_the_device(twins: Any) -> None:
    plain, ours, x = twins

    def two(m: nn.Module, x: torch.Tensor) -> None:
        a, b = m(x).square().mean(), m(2 * x).square().mean()
        a.backward()
        b.backward()

    both(twins, two)
    assert equal_gradients(plain, ours)
    plan = ours.forward.plan
    few = copy.deepcopy(plain)
    few.zero_grad()
    budgeted = rekindle.plan(rekindle.trace(few, x), minimize="memory", offload=True, host_budget=plan.host_bytes)
    rekindle.apply(few, budgeted)
    pool = away.pool_of(ours, torch.device("cpu"))
    pool._idle.clear()
    pool._total = 0
    plain.zero_grad()
    with pytest.warns(rekindle.RekindleWarning, match="values stay on the device"):
        both((plain, few, x), two)
    assert equal_gradients(plain, few)


def test_a_host_without_the_memory_refuses_before_training(twins: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, ours, x = twins
    pool = HostPool(torch.device("cpu"))
    monkeypatch.setattr("rekindle.torch.run.bound.pool_of", lambda model, device: pool)
    monkeypatch.setattr(away, "free_memory", lambda: 1000)
    with pytest.raises(RekindleError, match="host_budget"):
        rekindle.apply(plain, ours.forward.plan)
    assert torch.equal(plain(x), plain(x)) is False  # dropout draws: it runs, plainly
    assert not hasattr(plain.forward, "plan")


class Loss(Attention):
    """The loss itself, so that the plan knows all that a step holds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square().mean()


def test_device_and_host_hold_what_was_predicted() -> None:
    torch.manual_seed(0)
    model, x = Loss(width=128), torch.rand(4, 256, 128)
    plan = rekindle.plan(rekindle.trace(model, x), budget=0.5, offload=True)
    assert plan.moved_bytes
    check = rekindle.verify(model, x, plan)
    assert check.ok
    assert check.measured_peak_bytes == pytest.approx(plan.activation_peak_bytes, rel=0.01)
    rekindle.apply(model, plan)
    assert build(plan.trace.lowered, plan.schedule).host_bytes == pytest.approx(plan.host_bytes, rel=0.01)


def test_copies_of_fake_tensors_hold_what_was_predicted() -> None:
    with FakeTensorMode():
        model, x = Loss(width=128), torch.rand(4, 256, 128)
        plan = rekindle.plan(rekindle.trace(model, x, target="h200"), budget=0.4, offload=True)
        assert plan.moved_bytes
        rekindle.apply(model, plan)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        known = [x, *(t for p in model.parameters() for t in (p, p.grad) if t is not None)]
        peak = measure.storage_peak(lambda: model(x).backward(), known)
    assert peak.peak_bytes == pytest.approx(plan.activation_peak_bytes, rel=0.01)


class Tied(nn.Module):
    """A weight of several uses, whose gradient autograd adds up from its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x + self.shared(x).tanh()
        return x


def test_gradients_that_are_sums_of_parts_are_eagers() -> None:
    torch.manual_seed(0)
    plain, x = Tied(), torch.rand(64, 32)
    ours = copy.deepcopy(plain)
    trace = rekindle.trace(ours, x)
    rekindle.apply(ours, everything_away(trace))

    def twice(m: nn.Module, x: torch.Tensor) -> None:
        m(x).square().mean().backward()
        (m(x) + m(2 * x)).square().mean().backward()

    both((plain, ours, x), twice)
    assert equal_gradients(plain, ours)


def everything_away(trace: rekindle.Trace) -> rekindle.Plan:
    """A plan that runs each op once and copies every value to the host in each of its gaps."""
    graph = dataclasses.replace(trace.graph, link=rekindle.Link(1e9, 1e9))
    plan = rekindle.plan(dataclasses.replace(trace, graph=graph), 1.0, solver="none")
    memory = rekindle.simulate(graph, plan.schedule).memory[plan.schedule.array[:, 0] == 0]
    copying = Copying(graph, plan.schedule, memory)
    schedule = copying.within(copying.least_room, float("inf"))
    assert schedule is not None
    return dataclasses.replace(plan, schedule=schedule, graph=graph, asked=None)


def test_a_plan_within_a_host_budget_is_applied_within_it(twins: Any) -> None:
    _, ours, x = twins
    plain = copy.deepcopy(planned()[0])
    trace = rekindle.trace(plain, x)
    for share in (1.0, 0.7, 0.4):
        most = int(share * ours.forward.plan.host_bytes)
        plan = rekindle.plan(trace, minimize="memory", offload=True, host_budget=most)
        assert build(trace.lowered, plan.schedule).host_bytes <= most
        rekindle.apply(copy.deepcopy(plain), plan)


def test_the_default_device_makes_no_difference(twins: Any) -> None:
    plain, ours, x = twins
    torch.set_default_device("meta")
    try:
        both((plain, ours, x), lambda m, x: m(x).square().mean().backward())
    finally:
        torch.set_default_device(None)
    assert equal_gradients(plain, ours)


def test_a_value_that_is_larger_than_planned_stays_on_the_device() -> None:
    t = torch.arange(200.0)
    held = Away(1024, HostPool(torch.device("cpu")))
    held.send(0, 0, 512, False, t)
    held.gone(0)
    (back,) = held.fetch(0, False)
    assert back is t


def test_a_result_that_the_caller_may_hold_is_not_copied() -> None:
    trace = rekindle.trace(Attention(), torch.rand(2, 8, 32))
    graph = dataclasses.replace(trace.graph, link=rekindle.Link(1e9, 1e9))
    plain = rekindle.Schedule.baseline(graph)
    result = next(v for v in graph.ops[graph.boundary].inputs if graph.arrays.producer[v] >= 0)  # type: ignore[index]
    at = next(i for i, s in enumerate(plain.steps) if isinstance(s, rekindle.Run) and s.op == graph.boundary)
    schedule = rekindle.Schedule((*plain.steps[:at], rekindle.Offload(result), *plain.steps[at:]), graph.hash)
    with pytest.raises(RekindleError, match="which the caller may hold"):
        build(trace.lowered, schedule)


def test_larger_blocks_of_another_plan_do_not_take_the_room() -> None:
    pool = HostPool(torch.device("cpu"))
    pool.reserve([30, 30], 60)
    pool.reserve([20, 20, 20], 60)
    assert sorted(b.memory.nbytes for b in pool._idle) == [20, 20, 20]
