"""The comparators: they run what they say, the gradients are the plain ones, and the model is left as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from comparators.block_chains import block_chains
from comparators.checkpointing import _around, per_block, sequential
from comparators.compiled import compiled
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from zoo_suites import fused_dropout

from marks import every, sweep
from rekindle import api
from rekindle.bench.methods import NotApplicable
from rekindle.bench.suites import SUITES
from rekindle.torch.compiled.cuts import find_blocks
from rekindle.torch.costs.operator_calls import FlopCount, ModelledTime
from rekindle.torch.measure.memory import allocator_peak, storage_peak
from rekindle.torch.trace import trace

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench.py"


class Block(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm, self.wide, self.back = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x + scale * self.back(torch.tanh(nn.functional.gelu(self.wide(self.norm(x)))))


class Net(nn.Module):
    """Blocks called in a loop, with one more argument; `peek` uses a result between two blocks."""

    def __init__(self, n: int = 6, d: int = 32, peek: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(d) for _ in range(n))
        self.head = nn.Linear(d, 3)
        self.peek = peek

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.new_full((1,), 0.5)
        seen = 0.0
        for i, b in enumerate(self.blocks):
            x = b(x, scale)
            if self.peek and i == 2:
                seen = x.mean()
        return self.head(x) + seen


pytestmark = pytest.mark.usefixtures("one_thread")


def cnn() -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in ((3, 8), (8, 8), (8, 8), (8, 8)):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def stepper(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        model(x).sum().backward()

    step()
    return step


def gradients(model: nn.Module, step: Callable[[], None]) -> list[torch.Tensor]:
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    step()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def figures(step: Callable[[], None]) -> tuple[int, int]:
    peak = allocator_peak(step).peak_bytes
    with FlopCount() as count:
        step()
    return peak, count.total


def untouched(model: nn.Module) -> bool:
    return not any("forward" in m.__dict__ for m in model.modules())


@pytest.mark.parametrize("way", ["blocks", "sequential", "selective"])
def test_checkpointing_gives_the_plain_gradients_and_holds_less(way: str) -> None:
    torch.manual_seed(0)
    model, x = Net(9), torch.rand(64, 32)
    step = stepper(model, x)
    plain, (peak, flops) = gradients(model, step), figures(step)
    context = sequential(model, step) if way == "sequential" else per_block(model, way == "selective")
    with context:
        assert all(torch.equal(a, b) for a, b in zip(plain, gradients(model, step), strict=True))
        less, more = figures(step)
    assert untouched(model)
    assert less < 0.9 * peak
    assert more == flops if way == "selective" else 1.05 * flops < more < 1.35 * flops


def test_a_sequential_of_leaves_is_cut_where_nothing_works_in_place() -> None:
    torch.manual_seed(0)
    model, x = cnn(), torch.rand(4, 3, 16, 16)
    step = stepper(model, x)
    plain, (peak, _) = gradients(model, step), figures(step)
    with sequential(model, step):
        assert all(torch.equal(a, b) for a, b in zip(plain, gradients(model, step), strict=True))
        assert figures(step)[0] < peak
    with pytest.raises(NotApplicable, match="no repeated blocks"), per_block(model):
        pass
    assert untouched(model)


def test_a_result_that_others_read_ends_a_chain() -> None:
    x = torch.rand(4, 32)
    whole, cut = Net(6), Net(6, peek=True)
    assert [len(c) for c in block_chains(whole, find_blocks(whole), stepper(whole, x))] == [6]
    assert [len(c) for c in block_chains(cut, find_blocks(cut), stepper(cut, x))] == [3, 3]
    plain = gradients(cut, stepper(cut, x))
    with sequential(cut, stepper(cut, x)):
        assert all(torch.equal(a, b) for a, b in zip(plain, gradients(cut, stepper(cut, x)), strict=True))


@pytest.mark.parametrize("budget", every(4, [0.75, 0.5, 0.25, 0.0]))
@pytest.mark.parametrize("make", [lambda: (Net(4), torch.rand(32, 32)), lambda: (cnn(), torch.rand(2, 3, 16, 16))])
def test_the_partitioner_gives_the_plain_gradients(make: Callable[[], Any], budget: float) -> None:
    torch.manual_seed(0)
    model, x = make()
    step = stepper(model, x)
    plain, (_, flops) = gradients(model, step), figures(step)
    traced = trace(model, x, target="h200")
    once = api.plan(traced, minimize="memory", solver="none", cost="flops", time_limit=0.01)
    before = {k: b.clone() for k, b in model.named_buffers()}
    step()
    after = {k: b.clone() for k, b in model.named_buffers()}
    for k, b in model.named_buffers():
        b.copy_(before[k])
    with compiled(model, traced, once, budget):
        ours = gradients(model, step)
        assert all(torch.equal(b, after[k]) for k, b in model.named_buffers())
        more = figures(step)[1]
    assert untouched(model)
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(plain, ours, strict=True))
    assert flops <= more < 1.5 * flops
    if budget == 0:
        assert more > 1.1 * flops


def test_partitions_are_told_apart_by_what_they_run() -> None:
    model, x = Net(8), torch.rand(256, 32)
    traced = trace(model, x, target="h200")
    once = api.plan(traced, minimize="memory", solver="none", cost="flops", time_limit=0.01)
    keys = []
    for budget in (1.0, 1.0, 0.0):
        with compiled(model, traced, once, budget) as key:
            keys.append(key)
    assert keys[0] == keys[1] != keys[2]


def test_a_smaller_budget_holds_less() -> None:
    model, x = Net(8), torch.rand(256, 32)
    step = stepper(model, x)
    traced = trace(model, x, target="h200")
    once = api.plan(traced, minimize="memory", solver="none", cost="flops", time_limit=0.01)
    peaks = []
    for budget in (1.0, 0.5):
        with compiled(model, traced, once, budget):
            step()
            peaks.append(allocator_peak(step).peak_bytes)
    assert peaks[1] < 0.9 * peaks[0]


def test_modelled_time_is_the_graphs() -> None:
    with FakeTensorMode():
        model, x = Net(4, 512), torch.rand(65536, 512)
        step = stepper(model, x)
        with ModelledTime("rtx2080ti") as time:
            step()
    graph = trace(model, x, target="rtx2080ti").graph
    assert time.total == pytest.approx(sum(op.seconds for op in graph.ops), rel=0.01)


def test_fused_dropout_keeps_bytes() -> None:
    with FakeTensorMode():
        x = torch.rand(1000, requires_grad=True)
        kept: list[Any] = []

        def run() -> None:
            kept.append(torch.nn.functional.dropout(x * 2, 0.5))

        eager = storage_peak(run).left_bytes
        kept.clear()
        with fused_dropout():
            assert storage_peak(run).left_bytes == 4000 + 1000
        kept.clear()
        assert storage_peak(run).left_bytes == eager == 4000 + 4000


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(3))


class Stage(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.down = nn.Linear(4, 4)
        self.layers = nn.Sequential(*(Outer() for _ in range(n)))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Experts()


@pytest.mark.parametrize(
    ("model", "kind", "count"),
    [
        (nn.Sequential(nn.Linear(4, 4), *(Block(4) for _ in range(3))), Block, 3),
        (nn.ModuleDict({"a": Stage(2), "b": Stage(3)}), Outer, 5),
        (nn.ModuleList(Experts() for _ in range(4)), Experts, 4),
        (nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)), nn.Sequential, 2),
        (cnn(), nn.Module, 0),
    ],
)
def test_blocks(model: nn.Module, kind: type[nn.Module], count: int) -> None:
    found = find_blocks(model)
    assert len(found) == count
    assert all(isinstance(b, kind) for b in found)


def test_what_leads_to_the_first_block_and_follows_the_last_joins_the_segments() -> None:
    """By hand one writes nn.Sequential(conv1, bn1, relu, maxpool, *blocks, avgpool, ...): resnet101 in six segments."""
    case = SUITES["seeds"]()["resnet101"].make()
    with sequential(case.model, case.once):
        assert case.measure().peak / 2**20 == pytest.approx(1635.9, abs=0.1)


def test_what_works_in_place_begins_no_segment() -> None:
    """It would overwrite what the segment before has saved, or its own input, from which it is run again."""
    a, b, c, d, block = nn.ReLU(inplace=True), nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Linear(2, 2), Net(1)
    assert _around([a, b, block, c, d], [block]) == [[b], [block, c], [d]]
    assert _around([a, b, block, d, c], [block]) == [[b], [block], [d, c]]
    assert _around([a, b], [block]) == []


@sweep
def test_the_command_of_the_repository_runs_them_in_its_processes_too(tmp_path: Path) -> None:
    """All else is `rekindle bench`: --json prints one document of rows."""
    asked = ["--suite", "smoke", "--models", "cnn,gpt", "--methods", "checkpoint-sequential", "--jobs", "2", "--json"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *asked], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {r["model"] for r in rows} == {"cnn", "gpt"}
    assert all(r["peak_mb"] < r["plain_mb"] for r in rows)
