"""The small models by name, how one is made and called, and its loss: `models` has them all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

torch.set_num_threads(1)  # on tensors this small more threads only wait for each other


Made = tuple[nn.Module, Any]
MODELS: dict[str, Callable[[], Made]] = {}
HF: dict[str, Callable[[], Made]] = {}
CONTEXTS: dict[str, Callable[[], Any]] = {}  # what a model is called under


def make(name: str) -> Made:
    """The model and its sample, the same for the same name, in train mode; the global random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model, sample = (MODELS | HF)[name]()
    return model.train(), sample


def context(name: str) -> contextlib.AbstractContextManager[Any]:
    """What the model is called under."""
    return CONTEXTS.get(name, contextlib.nullcontext)()


def call(model: nn.Module, sample: Any) -> Any:
    """The result of the model for a sample: a tensor, positional arguments or keyword arguments."""
    if isinstance(sample, dict):
        return model(**sample)
    return model(*sample) if isinstance(sample, tuple) else model(sample)


def tensors(x: Any) -> Iterator[Tensor]:
    """Every tensor in a nested result, in order."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, dict):
        for v in x.values():
            yield from tensors(v)
    elif isinstance(x, list | tuple):
        for v in x:
            yield from tensors(v)
    elif hasattr(x, "__dataclass_fields__"):
        for k in x.__dataclass_fields__:
            yield from tensors(getattr(x, k))


def loss_of(result: Any) -> Tensor:
    """The loss: under its key, or the scalar that comes first; else a sum over the squares of all that requires grad
    (scalars as they are)."""
    if isinstance(result, dict) and isinstance(result.get("loss"), Tensor):
        return result["loss"]
    parts = [t for t in tensors(result) if t.requires_grad]
    if isinstance(result, tuple | Tensor) and parts[0].ndim == 0:
        return parts[0]
    return sum((t if t.ndim == 0 else t.abs().square().sum()) for t in parts)  # type: ignore[return-value]


def entry(build: Callable[[], Made]) -> Callable[[], Made]:
    MODELS[build.__name__] = build
    return build


class Mean(nn.Module):
    """The mean of the squares of what a module returns: a loss without a target."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, *args: Tensor) -> Tensor:
        out = self.inner(*args)
        return (out[0] if isinstance(out, tuple) else out).square().mean()
