"""Copies of what parts save are exact however late they come, whatever runs the parts, and leave nothing behind."""

from __future__ import annotations

import copy
import functools
import gc
import os
import pickle
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rekindle
from copy_engines import FailingEngine, Late, LateEngine, ShuffledEngine, SlowEngine, train
from pairs import both, equal_gradients
from rekindle import RekindleError
from rekindle.parts.plan import Offloaded
from rekindle.torch.offload import away, part_copies
from rekindle.torch.offload.away import HostPool
from rekindle.torch.offload.part_copies import CallOrder, PartCopies, SavedCopies, SavedSizes

KINDS = ("planned", "again", "compiled")
CPU = torch.device("cpu")


class Block(nn.Module):
    """q, k and v are views of one storage. routes : its shapes depend on the data, so it cannot be captured."""

    def __init__(self, width: int, routes: bool, drop: float):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.routes, self.drop = routes, drop

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        y = F.dropout(self.out(torch.softmax(q @ k.transpose(-1, -2) * mask, -1) @ v), self.drop)
        if self.routes:
            at = (y.sum(-1).flatten() > 0).nonzero().squeeze(-1)
            y = y + torch.zeros_like(y).flatten(0, 1).index_add(0, at, y.flatten(0, 1)[at].tanh()).view_as(y)
        return x + y


class Model(nn.Module):
    """Blocks that share a mask. kind : how its parts run; of "planned" and "again" it cannot be captured whole."""

    def __init__(self, kind: str = "planned", width: int = 32, blocks: int = 4):
        super().__init__()
        self.kind, self.inner = kind, nn.Linear(width, width)
        drop = 0.0 if kind == "compiled" else 0.1
        self.blocks = nn.ModuleList(Block(width, kind == "again", drop) for _ in range(blocks))
        self.register_buffer("mask", torch.rand(24, 24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        for block in self.blocks:
            x = block(x, self.mask)
        if self.kind != "compiled" and x.sum().item() > 1e9:
            x = x * 2
        return x.square().mean()


@functools.cache
def planned(kind: str) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """(the model as it trains without copies, the model whose parts copy, input)."""
    torch.manual_seed(0)
    plain, x = Model(kind), torch.rand(8, 24, 32)
    ours, how = copy.deepcopy(plain), {"minimize": "memory", "progress": False}
    rekindle.checkpoint(ours, x, offload=True, **how, **({"compile": True} if kind == "compiled" else {}))
    assert ours.forward.plan.host_blocks
    if kind == "compiled":
        plan = ours.forward.plan
        rekindle.apply(plain, replace(plan, parts=tuple(replace(p, offloaded=None) for p in plan.parts)))
    return plain, ours, x


@pytest.fixture(params=KINDS)
def twins(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    return copy.deepcopy(planned(request.param))


@pytest.fixture
def pair() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    return copy.deepcopy(planned("planned"))


def step(m: nn.Module, x: torch.Tensor) -> None:
    m(x).backward()


def use(monkeypatch: pytest.MonkeyPatch, engine: Any) -> None:
    for where in (away, part_copies):
        monkeypatch.setattr(where, "engine_of", lambda device: engine)


@pytest.mark.parametrize("engine", [LateEngine, SlowEngine, ShuffledEngine])
def test_the_numbers_are_the_same_whenever_copies_run(
    twins: Any, engine: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, engine())
    theirs, ours = both(twins, train)
    assert torch.equal(theirs, ours)


@pytest.mark.parametrize("edge", ["left", "there"])
def test_an_edge_that_is_left_out_is_seen(pair: Any, edge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it these tests would prove nothing."""
    use(monkeypatch, LateEngine())
    real = part_copies._Copy

    class Without(real):  # type: ignore[misc, valid-type]
        def __setattr__(self, name: str, value: Any) -> None:
            if name == edge and value is not None:
                value.wait, value._run = lambda: None, None
            super().__setattr__(name, value)

    monkeypatch.setattr(part_copies, "_Copy", Without)
    theirs, ours = both(pair, train)
    assert not torch.equal(theirs, ours)


def test_a_failed_copy_is_an_error_and_the_next_step_is_right(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, ours, x = pair
    with monkeypatch.context() as m:
        use(m, FailingEngine())
        with pytest.raises(OSError, match="the link is down"):
            step(ours, x)
    ours.zero_grad()
    both(pair, step)
    assert equal_gradients(*pair[:2])


def blocks(model: nn.Module) -> tuple[int, int]:
    """(bytes of all blocks of a model's steps, blocks that no step uses)."""
    gc.collect()
    pool = away.pool_of(model, CPU)
    return pool._total, len(pool._idle)


def test_steps_that_end_in_any_way_give_their_blocks_back(twins: Any) -> None:
    _, ours, x = twins
    step(ours, x)
    before = blocks(ours)
    ours(x)  # no backward
    assert blocks(ours) == before
    loss = ours(x)
    loss.backward()
    assert blocks(ours) == before  # though the loss is alive
    if ours.kind != "compiled":  # which torch.compile does not allow
        loss = ours(x)
        loss.backward(retain_graph=True)
        loss.backward()
        assert blocks(ours) == before
    hook = ours.blocks[1].out.weight.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        step(ours, x)
    hook.remove()
    del loss
    torch.ones(1, requires_grad=True).sum().backward()  # autograd holds on to a failed backward until the next one
    assert blocks(ours) == before


def test_two_hundred_steps_take_no_more_memory_than_the_first_ones(twins: Any) -> None:
    _, ours, x = twins

    def level() -> tuple[int, int, int]:
        found = blocks(ours)
        return (*found, sum(issubclass(type(o), SavedCopies | torch.Tensor) for o in gc.get_objects()))

    for _ in range(3):
        step(ours, x)
    before = level()
    for _ in range(200):
        step(ours, x)
    assert level() == before


def test_no_block_is_made_in_a_step(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, ours, x = pair
    ours(x)
    monkeypatch.setattr(away, "host_block", lambda size, device: 1 / 0)
    for _ in range(3):
        step(ours, x)


def of_two_calls(m: nn.Module, x: torch.Tensor) -> None:
    a, b = m(x), m(2 * x)
    a.backward()
    b.backward(retain_graph=m.kind != "compiled")  # torch.compile allows no second backward
    if m.kind != "compiled":
        b.backward()


def of_both_calls(m: nn.Module, x: torch.Tensor) -> None:
    (m(x) * m(2 * x)).backward()


def of_the_input_alone(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(m(x), x)
    return g


@pytest.mark.parametrize("what", [of_two_calls, of_both_calls])
def test_steps_of_other_forms_have_the_same_gradients(twins: Any, what: Callable[..., Any]) -> None:
    both(twins, what)
    assert equal_gradients(*twins[:2])


def test_gradients_of_inputs_are_the_same(twins: Any) -> None:
    theirs, ours = both(twins, of_the_input_alone)
    assert torch.equal(theirs, ours)


def test_the_peak_is_the_predicted_one(twins: Any) -> None:
    _, ours, x = twins
    plan = ours.forward.plan
    check = rekindle.verify(ours, x)
    assert check.ok, check
    assert check.held_peak_bytes == pytest.approx(plan.activation_peak_bytes, rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_less_memory_than_without_copies(kind: str) -> None:
    plain, ours, x = planned(kind)
    without = copy.deepcopy(plain)
    how = {"compile": True} if kind == "compiled" else {}
    rekindle.checkpoint(without, x, minimize="memory", progress=False, **how)
    assert ours.forward.plan.activation_peak_bytes < without.forward.plan.activation_peak_bytes


def test_a_copied_a_pickled_and_a_saved_plan_copy_too(
    twins: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, ours, x = twins
    plan = ours.forward.plan
    plan.save(tmp_path / "plan.json")
    assert "rekindle.parts/3" in (tmp_path / "plan.json").read_text()
    assert rekindle.load(tmp_path / "plan.json") == plan
    loaded = rekindle.apply(rekindle.restore(copy.deepcopy(ours)), rekindle.load(tmp_path / "plan.json"))
    step(ours, x)
    take = HostPool.take
    taken: list[int] = []

    def noted(self: HostPool, size: int, most: int | None) -> Any:
        taken.append(size)
        return take(self, size, most)

    monkeypatch.setattr(HostPool, "take", noted)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), loaded):
        taken.clear()
        plain.zero_grad()
        other.zero_grad()
        both((plain, other, x), step)
        assert sorted(taken) == sorted(plan.host_blocks)
        assert equal_gradients(plain, other)


def test_hooks_of_the_user_see_what_is_saved(pair: Any) -> None:
    _, ours, x = pair
    seen: list[int] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        seen.append(t.nbytes)
        return t.detach()

    with (
        pytest.warns(rekindle.RekindleWarning, match="values stay on the device"),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
    ):
        both(pair, step)
    assert seen
    assert equal_gradients(*pair[:2])


def test_a_host_without_the_memory_refuses_before_training(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, ours, x = pair
    monkeypatch.setattr("rekindle.torch.parts.applied.pool_of", lambda model, device: HostPool(device))
    monkeypatch.setattr(away, "free_memory", lambda: 1000)
    with pytest.raises(RekindleError, match="host_budget"):
        rekindle.apply(rekindle.restore(ours), planned("planned")[1].forward.plan)
    ours(x).backward()


class Twice(Model):
    def __init__(self) -> None:
        super().__init__(blocks=2)
        self.blocks.extend([*self.blocks])


@pytest.mark.parametrize("copies", [True, False])
def test_a_saved_plan_of_parts_that_are_called_twice_is_the_same(copies: bool, tmp_path: Any) -> None:
    ours = rekindle.checkpoint(
        Twice(), torch.rand(8, 24, 32), minimize="memory", offload=copies, progress=False, check=False
    )
    ours.forward.plan.save(tmp_path / "plan.json")
    assert rekindle.load(tmp_path / "plan.json") == ours.forward.plan


@pytest.mark.parametrize("share", [0.7, 0.4, 0.0])
def test_a_plan_keeps_the_host_budget(share: float) -> None:
    plain, ours, x = planned("planned")
    most, few = int(share * sum(ours.forward.plan.host_blocks)) or 1, copy.deepcopy(plain)
    rekindle.checkpoint(few, x, minimize="memory", offload=True, host_budget=most, progress=False)
    assert sum(few.forward.plan.host_blocks) <= most


def test_the_mask_that_all_blocks_have_stays(pair: Any) -> None:
    for part in pair[1].forward.plan.parts:
        if part.offloaded is not None:
            assert part.offloaded.stay == (1,)


# -- calls by hand -----------------------------------------------------------------------------------------------------
class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.rand(64))


def run(offloaded: Offloaded, *calls: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    order, module = CallOrder(), Two()
    return [PartCopies(offloaded, order, HostPool(CPU)).run(module, (), call) for call in calls]


@pytest.mark.parametrize("leaves", [True, False])
def test_memory_that_is_copied_outlives_its_graph(leaves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a copy reads memory that is gone, and storages at the same place are taken for each other."""
    use(monkeypatch, LateEngine())
    x, freed = torch.rand(1 << 16, requires_grad=True), list[Any]()

    def drops() -> torch.Tensor:
        first, second = (x * 2).exp(), (x * 3).exp()
        freed.append(weakref.ref(first.untyped_storage()))
        del first
        return second

    made = run(Offloaded(1 << 30), drops, *[x.sin] * leaves)
    assert (freed[0]() is None) == leaves
    sum(t.sum() for t in made).backward()  # type: ignore[union-attr]
    del made
    assert freed[0]() is None
    wanted = 3 * (3 * x).exp() + leaves * x.cos()
    assert torch.allclose(x.grad, wanted)  # type: ignore[arg-type]


def test_a_forked_process_waits_for_no_copy_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    order, module, x = CallOrder(), Two(), torch.rand(64, requires_grad=True)
    copies = PartCopies(Offloaded(1 << 20), order, HostPool(CPU))
    use(monkeypatch, LateEngine())
    kept = copies.run(module, (), x.sin)
    monkeypatch.setattr(Late, "wait", lambda self: pytest.fail("it waits"))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    copies.run(module, (), x.cos)
    monkeypatch.undo()
    kept.sum().backward()
    assert torch.equal(x.grad, x.cos())  # type: ignore[arg-type]


def test_a_forked_process_waits_for_no_block_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    for process in (-1, os.getpid()):
        pool = HostPool(CPU)
        pool.give(away.Block(torch.empty(8, dtype=torch.uint8), Late(lambda p=process: waited.append(p))))
        with monkeypatch.context() as m:
            m.setattr(os, "getpid", lambda p=process: p)
            del pool
            gc.collect()
    assert waited == [os.getpid()]


def test_a_write_after_the_save_is_the_error_that_autograd_has() -> None:
    """Even where the write came while the copy ran, so that nobody knows what was copied."""
    x = torch.rand(64, requires_grad=True)
    y = x * 2

    def writes() -> torch.Tensor:
        made = y.exp()
        kept = made * 1
        made.add_(1)
        return kept

    first, last = run(Offloaded(1 << 20), writes, lambda: x.sin())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (first.sum() + last.sum()).backward()


def test_a_write_to_what_stays_is_an_error_too() -> None:
    x = torch.rand(64, requires_grad=True)

    def writes() -> torch.Tensor:
        made = (x * 2).exp()
        kept = made * 1
        made.add_(1)
        return kept

    (first,) = run(Offloaded(1), writes)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.sum().backward()


def test_as_much_is_copied_as_there_is_room_for() -> None:
    x, small = torch.rand(256, requires_grad=True), torch.rand(64, requires_grad=True)
    held = SavedCopies(1300, HostPool(CPU))
    packed = [held.pack(t) for t in (x, x.view(16, 16), small.detach()[8:], x.detach().clone())]
    assert [p.copy is not None for p in packed] == [True, True, True, False]
    assert packed[0].copy is packed[1].copy
    held.leave()
    assert [p.tensor is None for p in packed] == [True, True, True, False]
    held.fetch()
    for p, t in zip(packed[:3], (x, x.view(16, 16), small[8:]), strict=True):
        back = held.unpack(p)
        assert torch.equal(back, t)
        assert back.stride() == t.stride()
    assert packed[0].copy.whole is None  # every tensor in it was handed over


def test_a_tensor_of_another_device_than_the_model_stays_and_decides_nothing() -> None:
    """A first argument on the CPU, such as lengths, would else leave all of a GPU's values there."""
    t, noted = torch.rand(64), SavedSizes((), "cuda")
    noted.pack(t)
    assert not noted.found
    assert SavedCopies(1 << 20, HostPool(CPU), kind="cuda").pack(t).copy is None


def test_sizes_count_each_storage_once_and_no_parameter() -> None:
    module, x = Two(), torch.rand(64, requires_grad=True)
    noted = SavedSizes(part_copies.storages_of(module.parameters()))
    with torch.autograd.graph.saved_tensors_hooks(noted.pack, noted.unpack):
        y = (x * module.w).view(8, 8).exp().view(-1)
        (y * y.view(8, 8).sin().view(-1)).sum()
    sizes = [size for size, _ in noted.found]
    assert len({storage for _, storage in noted.found}) == len(sizes)
    assert sizes == [256] * len(sizes)
