"""Captured, planned and run on fake CUDA tensors: all of the way of a model on a GPU but its kernels.

It takes a GPU, or a CUDA build of PyTorch without one: `python tools/cuda_without_a_device.py -m pytest tests/matrix`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from fake_cuda import on_fake_cuda
from models import call, loss_of, make
from rekindle.model.judge import simulate
from rekindle.model.schedule import Schedule
from rekindle.torch.capture.attention import AttentionOfGpu

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, or the one of tools/cuda_without_a_device.py"
)

# model -> parts of the names of ops that its step has on a GPU, in float32 and under autocast to bfloat16
CUDNN_NORM, NORM, ATTENTION = "cudnn_batch_norm", "native_batch_norm", "_scaled_dot_product_"
MODELS: dict[str, tuple[set[str], set[str]]] = {
    "cnn": ({CUDNN_NORM, "native_dropout"}, {NORM, "native_dropout"}),
    "unet": ({CUDNN_NORM}, {NORM}),
    "inplace_cnn": ({f"rekindle.{CUDNN_NORM}"}, {NORM}),  # a norm that runs twice
    "other_norms": ({f"rekindle.{CUDNN_NORM}"}, set()),  # an instance norm
    "gpt": ({f"{ATTENTION}efficient_attention"}, {f"{ATTENTION}*"}),
    "transformer_encoder": ({f"{ATTENTION}efficient_attention"}, {f"{ATTENTION}*"}),
    "gpt2": ({f"{ATTENTION}efficient_attention"}, {f"{ATTENTION}*"}),
    "llama": ({f"{ATTENTION}efficient_attention"}, {f"{ATTENTION}*"}),
    "vit": ({f"{ATTENTION}efficient_attention", "convolution"}, {f"{ATTENTION}*", "convolution"}),
    "lstm_unrolled": ({"addmm"}, {"addmm"}),
}
ON_HALF = ("flash_attention", "cudnn_attention", "efficient_attention")  # which of them depends on the GPU and the mask


def precision(autocast: bool) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast("cuda", torch.bfloat16) if autocast else contextlib.nullcontext()


def trained(model: nn.Module, sample: Any, autocast: bool) -> dict[str, tuple[Any, ...]]:
    """Shape, strides, dtype and device of each gradient after two steps."""
    for p in model.parameters():
        p.grad = None
    for _ in range(2):
        with precision(autocast):
            loss = loss_of(call(model, sample))
        loss.backward()
    return {
        k: (tuple(p.grad.shape), p.grad.stride(), p.grad.dtype, p.grad.device)
        for k, p in model.named_parameters() if p.grad is not None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "autocast"),
    [(n, a) for n in MODELS for a in (False, True)] + [("mixture_of_experts", False)],
)
def test_a_step_by_a_plan(name: str, autocast: bool) -> None:
    mode, model, sample = on_fake_cuda(*make(name))
    with mode:
        with precision(autocast):
            trace = rekindle.trace(model, sample)
        ops = {op.target for op in trace.graph.ops}
        for part in MODELS[name][autocast] if name in MODELS else ():
            parts = [part.replace("*", kind) for kind in ON_HALF] if "*" in part else [part]
            assert any(p in op for p in parts for op in ops), f"{part} is not among {sorted(ops)}"
        expected = trained(model, sample, autocast)
        plan = rekindle.plan(trace, minimize="memory", solver="every")
        assert len(plan.schedule.runs) > trace.graph.needed.sum(), "nothing runs again"
        rekindle.apply(model, plan, on_new_shape="error")
        assert trained(model, sample, autocast) == expected
        assert all(device.type == "cuda" for *_, device in expected.values())
        with precision(autocast):
            check = rekindle.verify(model, sample)
    assert check.measured_peak_bytes == pytest.approx(check.predicted_peak_bytes, rel=0.03)


@pytest.mark.parametrize("name", ["cnn", "gpt"])
def test_a_budget(name: str) -> None:
    mode, model, sample = on_fake_cuda(*make(name))
    with mode:
        trace = rekindle.trace(model, sample)
        plan = rekindle.plan(trace, budget=0.7, time_limit=0.5)
        assert plan.activation_peak_bytes <= 0.7 * (plan.baseline_peak_bytes - trace.graph.resident_bytes)
        check = rekindle.verify(model, sample, plan)
    assert check.measured_peak_bytes == pytest.approx(check.predicted_peak_bytes, rel=0.03)


def test_a_model_that_was_built_there() -> None:
    with torch._subclasses.FakeTensorMode(), torch.device("cuda"):
        model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 1))
        x = torch.randn(8, 16)
        plan = rekindle.plan(rekindle.trace(model, x), minimize="memory", solver="every")
        rekindle.apply(model, plan, on_new_shape="error")(x).sum().backward()
    assert {p.grad.device.type for p in model.parameters() if p.grad is not None} == {"cuda"}


def test_a_shape_without_a_plan_gets_one() -> None:
    mode, model, x = on_fake_cuda(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1)), torch.rand(8, 16))
    with mode:
        plan = rekindle.plan(rekindle.trace(model, x), minimize="memory", solver="every")
        rekindle.apply(model, plan)(torch.empty(5, 16, device="cuda")).sum().backward()
        assert len(list(model.forward.bounds)) == 2


def test_recurrent_layers() -> None:
    """cuDNN's kernels read addresses, and cannot be captured; PyTorch's own can."""
    mode, model, x = on_fake_cuda(*make("lstm_fused"))
    with mode, pytest.raises(rekindle.TraceError, match="cuDNN's recurrent layers"):
        rekindle.trace(model, x)
    with mode, torch.backends.cudnn.flags(enabled=False):
        plan = rekindle.plan(rekindle.trace(model, x), minimize="memory", solver="every")
        check = rekindle.verify(model, x, plan)
    assert check.measured_peak_bytes == pytest.approx(check.predicted_peak_bytes, rel=0.03)


def test_stages_run_in_the_thread_of_the_device() -> None:
    """Tokens on the CPU would let stages run beside the accumulation of gradients, and on another stream."""
    mode, model, x = on_fake_cuda(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1)), torch.rand(8, 16))
    threads: list[int] = []
    model[0].weight.register_post_accumulate_grad_hook(lambda _: threads.append(threading.get_ident()))
    with mode:
        plan = rekindle.plan(rekindle.trace(model, x), minimize="memory", solver="every")
        rekindle.apply(model, plan, on_new_shape="error")
        out = model(x).sum()
        runner = model.forward.last.runner
        ran, backward = [], runner.program.backward

        def noting(*args: Any) -> Any:
            for _ in backward(*args):
                ran.append(threading.get_ident())
                yield

        object.__setattr__(runner.program, "backward", noting)
        out.backward()
    assert ran
    assert set(ran) == set(threads)
    assert threading.get_ident() not in ran


SHAPES: dict[str, Callable[[], dict[str, Any]]] = {
    "float32": dict,
    "bfloat16": lambda: {"dtype": torch.bfloat16},
    "float64": lambda: {"dtype": torch.float64},
    "odd heads": lambda: {"size": 18},
    "odd heads in bfloat16": lambda: {"size": 18, "dtype": torch.bfloat16},
    "causal": lambda: {"is_causal": True, "dtype": torch.bfloat16},
    "a mask": lambda: {"masked": True},
}


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("name", SHAPES)
def test_attention_of_a_named_gpu_has_the_sizes_of_the_gpus(name: str, dropout: float) -> None:
    """The rules for a target that is not here, against PyTorch's own choice on the device."""
    options = SHAPES[name]()
    dtype, size = options.pop("dtype", torch.float32), options.pop("size", 16)
    masked = options.pop("masked", False)
    length, target = 40, "a100" if torch.cuda.get_device_capability() < (9, 0) else "h100"

    class Net(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(q, k, v, mask, dropout, **options) * 2

    def sample() -> tuple[torch.Tensor, ...]:
        tensors = [torch.rand(2, 2, length, size, dtype=dtype).requires_grad_() for _ in range(3)]
        return (*tensors, *([torch.ones(length, length, dtype=torch.bool)] if masked else []))

    here = rekindle.trace(Net(), sample(), target=target)
    mode, model, there = on_fake_cuda(Net(), sample())
    with mode:
        gpu = rekindle.trace(model, there)
    assert square(here) == square(gpu)
    assert plain_peak(here) == pytest.approx(plain_peak(gpu), rel=0.05)


def plain_peak(trace: rekindle.Trace) -> int:
    """Activation peak of the step without a plan."""
    return simulate(trace.graph, Schedule.baseline(trace.graph)).peak_bytes - trace.graph.resident_bytes


def square(trace: rekindle.Trace) -> bool:
    """Whether attention runs as plain operators, whose results grow with the square of the length."""
    return any("softmax" in op.target for op in trace.graph.ops)


def test_the_mode_leaves_attention_on_a_gpu_alone() -> None:
    mode, _, q = on_fake_cuda(nn.Identity(), torch.rand(1, 2, 8, 16))
    with mode, AttentionOfGpu((9, 0)) as attention:
        nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1)
    assert not attention.replaced


@pytest.mark.parametrize("parity", ["bitwise", "close"])
def test_batch_norms_of_cudnn_run_in_slices(parity: str) -> None:
    """Without a rule for them no region of a network with batch norms was found on a GPU."""
    layers = [
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.Conv2d(64, 64, 3, padding=1),
        nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(4), nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(1024, 3),
    ]  # fmt: skip
    mode, model, sample = on_fake_cuda(nn.Sequential(*layers), torch.rand(8, 3, 24, 24))
    with mode:
        expected = trained(model, sample, autocast=False)
        trace = rekindle.trace(model, sample)
        plan = rekindle.plan(trace, minimize="memory", cost="flops", parity=parity, effort="quick", cache=False)
        assert plan.rewriting is not None
        norms = [sum("cudnn_batch_norm" in op.target for op in g.ops) for g in (plan.graph, trace.graph)]
        assert norms[0] > norms[1] == 4
        rekindle.apply(model, plan, on_new_shape="error")
        assert trained(model, sample, autocast=False) == expected
        assert all(torch.is_tensor(b) and b.device.type == "cuda" for b in model.buffers())
