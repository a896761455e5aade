"""Parity and peaks on a CUDA device: planned steps against eager, where cuDNN, cuBLAS and the GPU's generator are used.

REKINDLE_GPU_TESTS_ON=cpu runs the same on the CPU, so that the tests themselves can be tried without a GPU.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import more_models
import pytest
import torch
from torch import nn

import rekindle
from models import call, loss_of, make
from rekindle import Plan, Trace
from rekindle.torch.costs.devices import closest
from rekindle.torch.measure.as_before import same
from rekindle.torch.measure.memory import allocator_peak
from rekindle.torch.offload import optimizer_state

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before cuBLAS is first used: else its sums may vary

DEVICE = os.environ.get("REKINDLE_GPU_TESTS_ON", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# dropout, batch norm, in-place ops, skip connections, attention, frozen and half-precision parameters, routing, and Hugging
# Face models
MODELS = ("cnn", "inplace_cnn", "unet", "random_layers", "other_norms", "frozen_backbone", "gpt", "transformer_encoder",
          "half_precision", "mixture_of_experts", "gpt2", "t5", "vit")  # fmt: skip
CONVOLUTIONAL = ("cnn", "inplace_cnn", "unet")
AUTOCAST = ("cnn", "unet", "gpt", "gpt2", "vit")


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    """Kernels whose bits vary from run to run cannot be compared."""
    on, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(on)
        torch.backends.cudnn.benchmark = benchmark


def made(name: str) -> tuple[nn.Module, Any]:
    """Model and sample on the device."""
    return on_device(*make(name))


def on_device(model: nn.Module, sample: Any) -> tuple[nn.Module, Any]:
    def move(t: Any) -> Any:
        return t.detach().to(DEVICE).requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t

    return model.to(DEVICE), torch.utils._pytree.tree_map(move, sample)


def precision(autocast: bool) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast(DEVICE, torch.bfloat16) if autocast else contextlib.nullcontext()


def plans(trace: Trace) -> list[Plan]:
    """None recomputes nothing, every recomputes all it can, auto is what people get, with copies to the host and without."""
    found = [rekindle.plan(trace, minimize="memory", solver=s) for s in ("none", "every", "chen-sqrt")]
    copied = rekindle.plan(trace, minimize="memory", offload=True, time_limit=0.3)
    return [*found, rekindle.plan(trace, max_overhead=0.3, time_limit=0.3), copied]


def train(model: nn.Module, sample: Any, autocast: bool, steps: int = 3) -> dict[str, torch.Tensor]:
    """Everything a few optimizer steps leave: losses, gradients, buffers, weights, random state."""
    left: dict[str, torch.Tensor] = {}
    torch.manual_seed(7)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3, momentum=0.9)
    for i in range(steps):
        with precision(autocast):
            loss = loss_of(call(model, sample))
        loss.backward()
        left[f"loss {i}"] = loss.detach()
        left |= {f"gradient {i} {k}": p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad(set_to_none=i % 2 == 0)
    left |= {f"buffer {k}": b.clone() for k, b in model.named_buffers()}
    left |= {f"weight {k}": p.detach() for k, p in model.named_parameters()}
    left["random state"] = torch.cuda.get_rng_state() if DEVICE == "cuda" else torch.get_rng_state()
    return left


def expect_parity(name: str, autocast: bool = False) -> None:
    expected = train(*made(name), autocast)
    again = train(*made(name), autocast)
    assert [k for k in expected if not same(expected[k], again[k])] == [], "eager training itself varies"
    with precision(autocast):  # for parity a roofline will do
        trace = rekindle.trace(*made(name), target=closest(torch.device(DEVICE)).name)
    for plan in plans(trace):
        model, sample = made(name)
        got = train(rekindle.apply(model, plan, on_new_shape="error"), sample, autocast)
        assert got.keys() == expected.keys()
        assert [k for k in expected if not same(expected[k], got[k])] == [], plan.solver


@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_same_bit_for_bit(name: str) -> None:
    expect_parity(name)


def test_training_is_the_same_with_recurrent_layers() -> None:
    """cuDNN's kernels cannot be captured; see tests/matrix."""
    with torch.backends.cudnn.flags(enabled=False):
        expect_parity("lstm_fused")


@pytest.mark.parametrize("fused", [False, True])
def test_the_optimizers_state_comes_and_goes(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer_state, "PART_BYTES", 2**22)
    left, taken = [], []
    for held in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8))).to(DEVICE)
        x = torch.rand(256, 512, device=DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        if held:
            rekindle.checkpoint(model, x, budget="1GiB", optimizer=optimizer, offload="optimizer", progress=False)
        for _ in range(4):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        state = [t for p in model.parameters() for t in optimizer.state[p].values()]
        taken.append(sum(t.nbytes for t in state if t.device.type == DEVICE))
        left.append([t.detach().cpu().clone() for t in [*model.parameters(), *state]])
        rekindle.restore(model)
    assert all(map(torch.equal, *left))
    assert DEVICE == "cpu" or taken[1] < 0.01 * taken[0]


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_training_is_the_same_where_cudnn_picks_by_trial(name: str) -> None:
    torch.backends.cudnn.benchmark = True
    expect_parity(name)


@pytest.mark.parametrize("name", AUTOCAST)
def test_training_is_the_same_under_autocast(name: str) -> None:
    expect_parity(name, autocast=True)


def convolutions(norms: bool = False) -> tuple[nn.Module, Any]:
    """The first convolutions of a VGG, which set its floor."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for i, o in ((3, 64), (64, 64), (64, 128), (128, 128)):
        layers += [nn.Conv2d(i, o, 3, padding=1), *([nn.BatchNorm2d(o)] if norms else []), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2)] if i == o else []
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    return nn.Sequential(*layers, *head), torch.randn(8, 3, 48, 48, requires_grad=True)


def with_norms() -> tuple[nn.Module, Any]:
    return convolutions(norms=True)


def language() -> tuple[nn.Module, Any]:
    """A GPT whose logits set the floor."""
    torch.manual_seed(0)
    return more_models.load("gpt2_small", batch=2, layers=1, d=128, heads=2, length=128, vocab=8000)


@pytest.mark.parametrize("goal", [{"minimize": "memory"}, {"max_overhead": 1 / 3}], ids=["least", "third"])
# Not with_norms by slices that round: a ReLU behind a batch norm turns on or off by a rounding, and gradients jump.
@pytest.mark.parametrize(
    ("made", "parity"),
    [
        (convolutions, "bitwise"),
        (convolutions, "close"),
        (with_norms, "bitwise"),
        (language, "bitwise"),
        (language, "close"),
    ],
)
def test_a_rewritten_step_keeps_its_bits(
    made: Callable[[], tuple[nn.Module, Any]], parity: str, goal: dict[str, Any]
) -> None:
    """Slices are proven on this device; with parity="close" results may round too, within the limits of `verify`."""
    model, sample = on_device(*made())
    unused = ["logits"] if made is language else []
    trace = rekindle.trace(model, sample, unused=unused)
    plan = rekindle.plan(trace, **goal, parity=parity, cost="flops", time_limit=2.0)
    if made is not language or parity == "close":  # the bits of products of matrices depend on the device
        assert plan.rewriting is not None
    check = rekindle.verify(model, sample, plan)
    assert check.ok, check
    assert parity == "close" or (check.loss_equal and check.gradients_equal)
    assert requested_peak(model, sample, plan) == pytest.approx(plan.activation_peak_bytes, rel=0.03, abs=2**20)


@pytest.mark.parametrize("by_trial", [False, True])
@pytest.mark.parametrize("name", ["unet", "gpt"])
def test_the_measured_peak_is_the_predicted_one(name: str, by_trial: bool) -> None:
    """On activations of some ten MiB, where the allocator's rounding is small beside them."""
    torch.backends.cudnn.benchmark = by_trial
    options: dict[str, Any] = {"unet": {"image": 64, "width": 16, "depth": 3}, "gpt": {"n_layer": 4, "d": 128}}[name]
    model, sample = on_device(*more_models.load(name, batch=8, **options))
    trace = rekindle.trace(model, sample)
    for goal in ({"budget": 1.0}, {"max_overhead": 0.3}):
        plan = rekindle.plan(trace, **goal, time_limit=0.5)
        check = rekindle.verify(model, sample, plan)
        assert check.ok, check
        assert requested_peak(model, sample, plan) == pytest.approx(plan.activation_peak_bytes, rel=0.03)


def requested_peak(model: nn.Module, sample: Any, plan: Plan) -> int:
    """Activation peak of a planned step, before the allocator rounds requests up."""
    rekindle.apply(model, plan, on_new_shape="error")
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.requires_grad else None

    def step() -> None:
        loss_of(call(model, sample)).backward()

    try:
        if DEVICE == "cpu":
            return allocator_peak(step).peak_bytes
        step()  # the libraries' lasting workspaces are made at their first call
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        level = torch.cuda.memory_stats()["requested_bytes.all.current"]
        step()
        torch.cuda.synchronize()
        return int(torch.cuda.memory_stats()["requested_bytes.all.peak"] - level)
    finally:
        rekindle.restore(model)


@pytest.mark.skipif(DEVICE != "cuda", reason="only a CUDA allocator can be capped")
def test_a_plan_trains_where_the_plain_step_is_out_of_memory() -> None:
    model, sample = on_device(*more_models.load("unet", batch=32, image=128, width=32, depth=3))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    plan = rekindle.plan(rekindle.trace(model, sample), max_overhead=0.3, time_limit=2.0)
    cap = (plan.peak_bytes + plan.baseline_peak_bytes) // 2
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(cap / torch.cuda.mem_get_info()[1])
    try:
        assert out_of_memory(model, sample)
        gc.collect()  # the error's traceback holds tensors
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        assert not out_of_memory(rekindle.apply(model, plan, on_new_shape="error"), sample)
        assert torch.cuda.max_memory_allocated() <= cap
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def out_of_memory(model: nn.Module, sample: Any) -> bool:
    try:
        call(model, sample).sum().backward()
    except torch.OutOfMemoryError:
        return True
    return False
