"""A trace for a named GPU has the sizes of that GPU's attention, on a machine without one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

import rekindle
from rekindle.torch.capture.attention import EFFICIENT, FLASH, PLAIN, Call, kernel

LENGTH, HEADS, BATCH = 128, 2, 2
H200, RTX2080TI = (9, 0), (7, 5)


class Attention(nn.Module):
    """[batch, length, 16 * heads] -> the same, with dropout in attention."""

    def __init__(self, dropout: float = 0.1):
        super().__init__()
        self.dropout = dropout
        self.qkv, self.out = nn.Linear(16 * HEADS, 48 * HEADS), nn.Linear(16 * HEADS, 16 * HEADS)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, 16)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, mask, self.dropout)
        return self.out(y.transpose(1, 2).flatten(2)).square().mean()


def sample() -> Tensor:
    return torch.randn(BATCH, LENGTH, 16 * HEADS)


def targets(trace: rekindle.Trace) -> set[str]:
    return {op.target for op in trace.graph.ops if "attention" in op.target}


def largest(trace: rekindle.Trace) -> int:
    """Bytes of the largest value."""
    return max(v.bytes for v in trace.graph.values)


QUADRATIC = BATCH * HEADS * LENGTH * LENGTH * 4


def test_attention_with_dropout_takes_memory_that_grows_with_the_length() -> None:
    model, x = Attention(), sample()
    assert largest(rekindle.trace(model, x)) == QUADRATIC
    there = rekindle.trace(model, x, target="h200")
    assert largest(there) < QUADRATIC / 2
    assert targets(there) == {
        "aten._scaled_dot_product_efficient_attention.default",
        "aten._scaled_dot_product_efficient_attention_backward.default",
    }
    assert there.graph.hash != rekindle.trace(model, x, target="cpu").graph.hash


def test_half_precision_takes_flash_attention() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        found = rekindle.trace(Attention(), sample(), target="h200")
    assert targets(found) == {
        "aten._scaled_dot_product_flash_attention.default",
        "aten._scaled_dot_product_flash_attention_backward.default",
    }


def test_a_mask_becomes_a_bias() -> None:
    model, mask = Attention(), torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    found = rekindle.trace(model, (sample(), mask), target="h200")
    assert "aten._scaled_dot_product_efficient_attention.default" in targets(found)


def test_where_both_have_a_fused_kernel_the_plan_runs_here() -> None:
    model, x = Attention(dropout=0.0), sample()
    found = rekindle.trace(model, x, target="h200")
    assert targets(found) == {
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
    }
    assert rekindle.verify(model, x, rekindle.plan(found, minimize="memory", solver="every")).ok


def test_a_plan_with_kernels_of_a_gpu_is_not_run_on_the_cpu(tmp_path: Path) -> None:
    model, x = Attention(), sample()
    plan = rekindle.plan(rekindle.trace(model, x, target="h200"), minimize="memory", solver="every")
    before = copy.deepcopy(model.state_dict())
    for use in (lambda: rekindle.apply(model, plan), lambda: rekindle.verify(model, x, plan)):
        with pytest.raises(rekindle.PlanMismatch, match=r"memory-efficient attention.*trace it without target="):
            use()
    plan.save(tmp_path / "plan.json")
    loaded = rekindle.apply(model, rekindle.load(tmp_path / "plan.json"), on_new_shape="error")
    with pytest.raises(rekindle.PlanMismatch, match="memory-efficient attention"):
        loaded(x)
    rekindle.restore(model)
    model(x).backward()
    assert all(torch.equal(before[k], t) for k, t in model.state_dict().items())


def test_on_fake_tensors_a_step_takes_the_predicted_memory() -> None:
    with FakeTensorMode():
        model, x = Attention(), sample()
        plan = rekindle.plan(rekindle.trace(model, x, target="h200"), minimize="memory", solver="every")
        check = rekindle.verify(model, x, plan)
    assert check.measured_peak_bytes == pytest.approx(check.predicted_peak_bytes, rel=0.01)


def test_a_target_that_is_named_later_changes_seconds_alone() -> None:
    """So that the plan runs here, and plans for other lengths too."""
    model, x = Attention(), sample()
    trace = rekindle.trace(model, x)
    plan = rekindle.plan(trace, minimize="memory", solver="every", target="h200")
    assert plan.graph.hash == trace.graph.hash
    rekindle.apply(model, plan)
    plain = copy.deepcopy(model)
    rekindle.restore(plain)
    for length in (LENGTH, LENGTH // 2):
        x = torch.randn(BATCH, length, 16 * HEADS)
        torch.manual_seed(0)
        ours = model(x)
        torch.manual_seed(0)
        assert torch.equal(ours, plain(x))
        ours.backward()


def calls() -> Iterator[tuple[str, Call, tuple[int, int], str]]:
    def of(dtype: torch.dtype = torch.float32, *, size: int = 16, heads: int = 2, length: int = 8, **more: Any) -> Call:
        q, k = torch.empty(1, 2, 8, size, dtype=dtype), torch.empty(1, heads, length, size, dtype=dtype)
        return Call(q, k, k, **more)

    half = torch.bfloat16
    yield "float32", of(), H200, EFFICIENT
    yield "bfloat16", of(half), H200, FLASH
    yield "float64", of(torch.float64), H200, PLAIN
    yield "a mask", of(half, attn_mask=torch.ones(8, 8, dtype=torch.bool)), H200, EFFICIENT
    yield "float32 heads that fill no line", of(size=18), H200, PLAIN
    yield "heads that flash attention pads", of(half, size=18), H200, FLASH
    yield "large heads", of(half, size=264), H200, EFFICIENT
    yield "grouped heads", of(half, heads=1, enable_gqa=True), H200, FLASH
    yield "grouped heads in float32", of(heads=1, enable_gqa=True), H200, PLAIN
    yield "causal over another length", of(half, length=16, is_causal=True), H200, EFFICIENT
    yield "three dimensions", Call(*[torch.empty(2, 8, 16)] * 3), H200, PLAIN
    yield "bfloat16 on Turing", of(half), RTX2080TI, PLAIN
    yield "float16 on Turing", of(torch.float16), RTX2080TI, EFFICIENT
    yield "float32 on Turing", of(size=18), RTX2080TI, EFFICIENT


@pytest.mark.parametrize(("call", "capability", "expected"), [pytest.param(*c[1:], id=c[0]) for c in calls()])
def test_the_kernel_that_a_gpu_takes(call: Call, capability: tuple[int, int], expected: str) -> None:
    assert kernel(call, capability) == expected


def test_kernels_that_the_user_switched_off_are_not_taken() -> None:
    q = torch.empty(1, 2, 8, 16, dtype=torch.bfloat16)
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        assert kernel(Call(q, q, q), H200) == PLAIN
