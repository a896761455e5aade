"""Code that only a GPU reaches: its random state, its allocator's statistics, events and streams, on real CUDA tensors.

On the device of tools/cuda_without_a_device.py the allocator, the generators, events and streams are PyTorch's own, and numbers
mean nothing: none is compared here, except by the CPU.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rekindle
from rekindle.torch.costs.cache import environment
from rekindle.torch.costs.clock import Measured, measure_cuda
from rekindle.torch.costs.operator_calls import call_of
from rekindle.torch.measure.as_before import as_before
from rekindle.torch.measure.memory import Levels, allocator_peak
from rekindle.torch.tensors import rng

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, or the one of tools/cuda_without_a_device.py"
)

aten = torch.ops.aten
MIB = 2**20


class Net(nn.Module):
    """Element-wise ops, norms and dropout: no cuBLAS, no cuDNN. [batch, 256] -> a number."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.ones(256) for _ in range(6))
        self.norm = nn.LayerNorm(256)

    def forward(self, x: Tensor) -> Tensor:
        for scale in self.scales:
            x = nn.functional.dropout(nn.functional.gelu(self.norm(x) * scale), 0.1)
        return x.square().sum()


@pytest.fixture
def net() -> tuple[Net, Tensor]:
    torch.cuda.empty_cache()
    return Net().to("cuda"), torch.rand(512, 256).to("cuda")


def nodes_of(trace: rekindle.Trace, target: Any) -> list[Any]:
    return [c.node for c in trace.lowered.calls if c.node is not None and c.node.target is target]


def test_the_random_state_is_saved_and_put_back() -> None:
    saved = rng.state("cuda:0")
    torch.rand(1000, device="cuda")
    drawn = rng.state("cuda:0")
    assert drawn != saved
    seen = rng.replay({0: (saved, saved, 0)}, 0, "cuda:0", lambda: rng.state("cuda:0"))
    assert seen == saved
    assert rng.state("cuda:0") == drawn
    rng.restore(saved, "cuda:0")
    assert rng.state("cuda:0") == saved


def test_steps_that_are_no_training_leave_the_random_state(net: tuple[Net, Tensor]) -> None:
    model, x = net
    before = rng.state("cuda:0")
    with as_before(model, [x]):
        model(x)
        assert rng.state("cuda:0") != before
    assert rng.state("cuda:0") == before


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.cuda.manual_seed(0),
        torch.cuda.get_rng_state,
        lambda: torch.cuda.set_rng_state(torch.zeros(16).byte()),
    ],
    ids=["seeds", "reads", "sets"],
)
def test_forward_may_not_touch_the_random_state(net: tuple[Net, Tensor], use: Any) -> None:
    model, x = net

    class Seeds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            use()
            return self.inner(x)

    with pytest.raises(rekindle.TraceError, match="random generator"):
        rekindle.trace(Seeds(), x, target="h100")


def test_the_allocators_peak() -> None:
    kept = []

    def step() -> None:
        kept.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))
        torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")

    found = allocator_peak(step, "cuda")
    assert found.peak_bytes == 3 * MIB
    assert found.left_bytes == MIB


def test_levels_at_marks() -> None:
    levels, kept = Levels(torch.device("cuda", 0)), []

    def step() -> None:
        torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
        levels.mark("first")
        kept.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))
        levels.mark("second")

    assert levels.measure(step) == 4 * MIB
    assert [(x.name, x.level, x.peak) for x in levels.found] == [
        ("first", 0, 4 * MIB), ("second", MIB, MIB), ("", MIB, MIB),
    ]  # fmt: skip


def test_operators_are_timed_by_events_and_their_workspace_is_the_allocators(net: tuple[Net, Tensor]) -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(256))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.scale).logsumexp(0).sum()

    model, x = Sums().to("cuda"), net[1]
    trace = rekindle.trace(model, x, target="h100")
    found = Measured()
    product, logsumexp = (
        call_of(nodes_of(trace, op)[0], None) for op in (aten.mul.Tensor, aten.logsumexp.default)
    )  # fmt: skip
    assert product is not None
    assert logsumexp is not None
    measure_cuda([product, logsumexp], {product: 1, logsumexp: 1}, found)
    assert found.seconds(product) > 0
    assert len(found.rounds[product]) > 1
    assert found.workspace[product] == 0
    assert found.workspace[logsumexp] >= x.numel() * 4  # it computes exp(x - max) elsewhere


def test_costs_are_kept_by_device_and_settings() -> None:
    name = environment(torch.device("cuda", 0))
    assert torch.cuda.get_device_name(0) in name
    torch.backends.cudnn.allow_tf32 = False
    try:
        assert environment(torch.device("cuda", 0)) != name
    finally:
        torch.backends.cudnn.allow_tf32 = True


def test_a_planned_step_takes_the_predicted_memory_of_the_allocator(net: tuple[Net, Tensor]) -> None:
    model, x = net
    trace = rekindle.trace(model, x)
    plan = rekindle.plan(trace, minimize="memory", solver="every")
    assert len(plan.schedule.runs) > trace.graph.needed.sum()
    check = rekindle.verify(model, x, plan)
    assert check.measured_peak_bytes == pytest.approx(check.predicted_peak_bytes, rel=0.02)
    assert check.plain_peak_bytes is not None
    assert check.measured_peak_bytes < check.plain_peak_bytes


def test_backward_runs_on_the_stream_and_in_the_thread_of_forward(net: tuple[Net, Tensor]) -> None:
    """As autograd does with every op of eager: the loop need not tell backward of the stream."""
    model, x = net
    plan = rekindle.plan(rekindle.trace(model, x, target="h100"), minimize="memory", solver="every")
    rekindle.apply(model, plan, on_new_shape="error")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        loss = model(x)
    seen: list[tuple[Any, int]] = []
    accumulated: list[int] = []
    program = model.forward.last.runner.program
    backward = program.backward

    def noting(*args: Any) -> Iterator[None]:
        for _ in backward(*args):
            seen.append((torch.cuda.current_stream(), threading.get_ident()))
            yield

    object.__setattr__(program, "backward", noting)
    model.scales[0].register_post_accumulate_grad_hook(lambda _: accumulated.append(threading.get_ident()))
    loss.backward()
    assert {s for s, _ in seen} == {stream}
    assert {t for _, t in seen} == set(accumulated)
    assert threading.get_ident() not in accumulated
