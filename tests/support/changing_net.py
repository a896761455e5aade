"""A module that carries more than tensors (attributes, a config, globals, lists), and its planned twin."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import rekindle

GAIN = 1.5
GAINS = [1.0]


class Config:
    def __init__(self) -> None:
        self.gain, self.steps, self.table = 1.0, 2, {"shift": 0.0}


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.linear, self.drop, self.config = nn.Linear(8, 8), nn.Dropout(0.2), config
        self.act: Callable[[torch.Tensor], torch.Tensor] = torch.tanh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.drop(self.act(self.linear(x)))
        return x + h * self.config.gain * GAIN * GAINS[0] + self.config.table["shift"]


class Net(nn.Module):
    """What a model may carry beside tensors."""

    kind_scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.blocks = nn.ModuleList(Block(self.config) for _ in range(3))
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.scale, self.rates, self.unread = 1.0, [1.0, 1.0, 1.0], 0

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, weight: float = 1.0, flag: bool = False
    ) -> Any:
        for block, rate in zip(self.blocks, self.rates, strict=True):
            x = block(x) * rate
        x = self.norm(x) * self.scale * self.kind_scale
        x = x if mask is None else x * mask
        return self.head(-x if flag else x) * weight


def pair(**goal: Any) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """(plain, planned, input)."""
    torch.manual_seed(0)
    plain, x = Net(), torch.randn(16, 8)
    planned = copy.deepcopy(plain)
    rekindle.checkpoint(planned, x, **(goal or {"minimize": "memory"}), solver="storages")
    return plain, planned, x


def step(model: nn.Module, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """Loss, gradients, buffers and the random state after one step."""
    model.zero_grad()
    torch.manual_seed(7)
    loss = model(*args, **kwargs).square().sum()
    noise = torch.rand(3)  # a loss that draws
    (loss * noise.sum()).backward()
    grads = [p.grad.clone() if p.grad is not None else torch.zeros(()) for p in model.parameters()]
    return [loss.detach(), *grads, *(b.clone() for b in model.buffers()), torch.get_rng_state()]


def equal(plain: nn.Module, planned: nn.Module, *args: Any, **kwargs: Any) -> bool:
    return all(map(torch.equal, step(plain, *args, **kwargs), step(planned, *args, **kwargs)))


def plans(model: nn.Module) -> int:
    return len(list(model.forward.bounds))


@contextmanager
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextmanager
def global_set(name: str, value: Any) -> Iterator[None]:
    before = globals()[name]
    globals()[name] = value
    try:
        yield
    finally:
        globals()[name] = before
