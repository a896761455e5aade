"""Training steps of a planned model and of an eager copy, compared bit for bit: loss, gradients, buffers, random state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import rekindle

QUICK: dict[str, Any] = {"minimize": "memory", "solver": "storages", "time_limit": 0.2}


def planned_and_eager(model: nn.Module, sample: Any, **how: Any) -> tuple[nn.Module, nn.Module]:
    """(the model, planned for the sample; an eager copy)."""
    eager = copy.deepcopy(model)
    return rekindle.checkpoint(model, sample, **(QUICK | how)), eager


def step(model: nn.Module, sample: Any, seed: int = 7) -> dict[str, Tensor]:
    """What one SGD step leaves: loss, gradients, buffers and the random state, by name."""
    torch.manual_seed(seed)
    model.zero_grad()
    out = (
        model(**sample) if isinstance(sample, dict) else model(*sample) if isinstance(sample, tuple) else model(sample)
    )
    loss = out["loss"] if isinstance(out, dict) and "loss" in out else _sum_of(out)
    loss.backward()
    found = {"loss": loss.detach().clone(), "random state": torch.get_rng_state()}
    for k, p in model.named_parameters():
        if p.grad is not None:
            found[f"gradient of {k}"] = p.grad.clone()
            p.data.add_(p.grad, alpha=-1e-3)
    return found | {f"buffer {k}": b.detach().clone() for k, b in model.named_buffers()}


def differences(one: dict[str, Tensor], two: dict[str, Tensor]) -> list[str]:
    """Names of what differs in any bit, or stands in one alone."""
    same = {k for k in one.keys() & two.keys() if torch.equal(one[k], two[k])}
    return sorted((one.keys() | two.keys()) - same)


def assert_same_steps(planned: nn.Module, eager: nn.Module, samples: Callable[[int], Any], count: int = 3) -> None:
    for i in range(count):
        wrong = differences(step(planned, samples(i), i), step(eager, samples(i), i))
        assert not wrong, f"step {i}: {wrong}"


def plans(model: nn.Module) -> int:
    """How many plans the model has."""
    forward: Any = model.forward
    return len(list(forward.bounds))


def _sum_of(out: Any) -> Tensor:
    if isinstance(out, Tensor):
        return out.square().sum()
    return sum((_sum_of(x) for x in (out.values() if isinstance(out, dict) else out)), torch.zeros(()))
