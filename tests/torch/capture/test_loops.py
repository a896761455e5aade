"""Planned modules with GradScaler, a moving average of weights, adapters and Accelerate: as without plans, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import rekindle
from marks import every, few, sweep
from pairs import Net
from steps_compared import QUICK, differences, plans, step

STEPS = 4


def sample(i: int = 0) -> torch.Tensor:
    return torch.rand(8, 16, generator=torch.Generator().manual_seed(i))


def assert_same(one: nn.Module, two: nn.Module) -> None:
    a, b = one.state_dict(), two.state_dict()
    assert a.keys() == b.keys()
    assert [k for k in a if not torch.equal(a[k], b[k])] == []


def scaled(model: nn.Module) -> float:
    """Trains with scaled losses in float16; one of the losses overflows. The scale at the end."""
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for i in range(STEPS):
        torch.manual_seed(i)
        with torch.autocast("cpu", torch.float16):
            out = model(sample(i))
        loss = out.float().square().mean() * (1e30 if i == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return float(scaler.get_scale())


def test_grad_scaler() -> None:
    model = Net()
    twin = copy.deepcopy(model)
    with torch.autocast("cpu", torch.float16):
        rekindle.checkpoint(model, sample(), **QUICK, progress=False)
    assert scaled(model) == scaled(twin) == 2.0**11  # halved once, by the loss that overflowed
    assert_same(model, twin)
    assert model.forward.last.uses == STEPS
    assert plans(model) == 1


def averaged(model: nn.Module, before: Callable[[nn.Module], Any]) -> tuple[nn.Module, torch.Tensor]:
    """The moving average of the weights while the model trains, and its result in `eval()`."""
    before(model)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for i in range(STEPS):
        torch.manual_seed(i)
        model(sample(i)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
    return average, average.eval()(sample()).detach()


def test_a_moving_average_of_a_planned_model() -> None:
    """AveragedModel copies the model, plan included; the copy is never trained."""
    model = Net()
    twin = copy.deepcopy(model)
    average, result = averaged(model, lambda m: rekindle.checkpoint(m, sample(), **QUICK, progress=False))
    expected, its_result = averaged(twin, lambda m: None)
    assert_same(average, expected)
    assert torch.equal(result, its_result)
    assert model.forward.last.uses == STEPS
    assert average.module.forward.last is None


def words() -> dict[str, torch.Tensor]:
    ids = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids}


def with_adapters(base: nn.Module) -> nn.Module:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    return peft.get_peft_model(
        base, peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True)
    )


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=2,
            n_head=2,
            n_embd=32,
            vocab_size=64,
            n_positions=16,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


@pytest.mark.parametrize("first", every(2, ["adapters", "plan"]))
def test_adapters_of_peft(first: str) -> None:
    """A plan made first is for a model without adapters: another one is made at the first step."""
    twin = with_adapters(gpt2())
    model = gpt2()
    if first == "plan":
        rekindle.checkpoint(model, words(), **QUICK, progress=False)
        before, planned = next(model.forward.bounds), model
        model = with_adapters(model)
    else:
        model = planned = with_adapters(model)
        rekindle.checkpoint(model, words(), **QUICK, progress=False)
    for i in range(STEPS):
        assert not differences(step(model, words(), i), step(twin, words(), i))
    assert sum(b.uses for b in planned.forward.bounds) == STEPS
    if first == "plan":
        assert before.uses == 0


@sweep
def test_adapters_that_are_switched_off_for_the_reference() -> None:
    """As TRL does it: the reference is the policy without its adapters, under no_grad."""
    model = with_adapters(gpt2())
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, words(), **QUICK, progress=False)
    for i in range(2):
        found = []
        for m in (model, twin):
            torch.manual_seed(i)  # dropout of the base model
            with torch.no_grad(), m.disable_adapter():
                found.append(m(**words()).logits)
        assert torch.equal(*found)
        assert not differences(step(model, words(), i), step(twin, words(), i))
    assert sum(b.uses for b in model.forward.bounds) == 2


def prepared(model: nn.Module, precision: str) -> list[torch.Tensor]:
    """Losses of steps with Accelerate, two micro-batches for each step of the optimizer."""
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # one precision for a process, it says
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
    wrapped, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    losses = []
    for i in range(STEPS):
        torch.manual_seed(i)
        with accelerator.accumulate(wrapped):
            losses.append(wrapped(sample(i)).square().mean())
            accelerator.backward(losses[-1])
            accelerator.clip_grad_norm_(wrapped.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("precision", few(["no", "bf16"], ["bf16"]))
def test_accelerate(precision: str) -> None:
    model = Net()
    twin = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        rekindle.checkpoint(model, sample(), **QUICK, progress=False)
    forward: Any = model.forward  # Accelerate wraps it
    assert all(map(torch.equal, prepared(model, precision), prepared(twin, precision)))
    assert_same(model, twin)
    assert forward.last.uses == STEPS
    assert len(list(forward.bounds)) == 1
