"""What forward writes into buffers takes the memory that eager takes: writes are ops in place, in turn with reads."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import rekindle
from marks import few
from rekindle.model.graph import SNAPSHOT
from rekindle.torch.measure.as_before import same

Use = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def cached(b: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    b[:, 4:10] = h.detach()
    return h + torch.cat([b[:, :4], h], 1).mean(1, keepdim=True)


def in_two_dimensions(b: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    b[:2, 3:9, 2:5] = h.detach()[:2, :, :3]
    return h + b[:, 3:9]


def by_index(b: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    b.index_copy_(1, torch.arange(6), h.detach())
    b[:, torch.arange(6)] = b[:, 2:8] * 2
    return h + b[:, :6]


def averaged(b: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    y = h + b[:, :6]
    b[:, :6].mul_(0.9).add_(h.detach(), alpha=0.1)
    torch._foreach_lerp_([b], [b * 2], 0.5)
    return y


def between(b: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    y = torch.cat([b[:, :4], h], 1)
    b[:, :6] = h.detach()
    z = torch.cat([b[:, 3:9], y], 1)
    b[:, 6:12] = h.detach() * 3
    return h + z.mean(1, keepdim=True) + b.sum()


def queued(b: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    y = h + torch.einsum("bnd,bkd->bnk", h, b.clone().detach()).mean()
    b[:, 4:10] = h.detach()
    return y


def rolled(b: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    y = h + b[:, :6]
    b.copy_(torch.cat([b[:, 6:], h.detach()], 1))
    return y + b[:, -6:]


USES = [cached, in_two_dimensions, by_index, averaged, between, queued, rolled]


class Blocks(nn.Module):
    def __init__(self, use: Use, long: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.use = use
        self.inner = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(2))
        self.register_buffer("memory", torch.randn(2, 4, long, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, f in enumerate(self.inner):
            x = torch.tanh(self.use(self.memory[i], x + f(x)))
        return x.square().mean()


@pytest.mark.parametrize("use", few(USES, [cached, between]))
def test_contents_are_what_eager_reads_whatever_runs_again(use: Use) -> None:
    model = Blocks(use)
    eager, x = copy.deepcopy(model), torch.rand(4, 6, 8)
    rekindle.checkpoint(model, x, minimize="memory", strict=True, effort="quick", solver="storages", progress=False)
    for _ in range(2):
        joined = [m(x) * m(x) for m in (model, eager)]  # the second call writes before the first one's backward
        for loss in joined:
            loss.backward()
        assert same(*joined)
    assert same(model.memory, eager.memory)
    assert all(same(p.grad, q.grad) for p, q in zip(model.parameters(), eager.parameters(), strict=True))


@pytest.mark.parametrize("use", [cached, in_two_dimensions, by_index])
def test_a_slice_that_is_written_takes_no_memory_of_the_whole_buffer(use: Use) -> None:
    model = Blocks(use, long=4096)
    graph = rekindle.trace(model, torch.rand(4, 6, 8), target="h200", progress=False).graph
    assert max(graph.values[v].bytes for op in graph.ops for v in op.outputs) < model.memory.nbytes / 100  # type: ignore[operator]


def test_an_op_that_may_run_again_reads_a_copy_of_the_part_that_it_reads() -> None:
    graph = rekindle.trace(Blocks(cached), torch.rand(4, 6, 8), target="h200", progress=False).graph
    copies = [sum(graph.values[v].bytes for v in op.outputs) for op in graph.ops if op.kind == SNAPSHOT]
    assert copies == [4 * 4 * 8 * 4] * 2


class Remembers(nn.Module):
    """Keeps what it has seen in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
        self.register_buffer("seen", torch.zeros(256, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(x) + self.seen.mean(0)
        self.seen = torch.cat([self.seen, h.detach()])[-4096:]
        return h.square().mean()


def test_a_tensor_that_forward_assigns_is_held_to_the_end() -> None:
    model, x = Remembers(), torch.rand(1024, 64)
    for _ in range(4):
        model(x).backward()
    rekindle.checkpoint(model, x, minimize="memory", solver="storages", progress=False)
    plan = model.forward.plan  # type: ignore[attr-defined, union-attr]
    assert abs(plan.checked.peak_error) < 0.02
    graph = plan.graph
    assert any(graph.values[v].bytes >= model.seen.nbytes for v in graph.keep)
    before = model.seen
    loss = model(x)
    model.seen.zero_()  # eager's backward does not read it
    loss.backward()
    assert before is not model.seen
