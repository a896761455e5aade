"""How large models and those with many options are built."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from rekindle.torch.private import FakeTensor, unset_fake_temporarily


@dataclass(frozen=True)
class Sized:
    """A model whose options are the fields of a dataclass in place of a long list of parameters.

    make : (batch, size) -> (model, sample).
    size : an instance of the dataclass: the published size.
    batch : the batch where none is given.
    """

    make: Callable[..., tuple[Any, Any]]
    size: Any
    batch: int

    def __call__(self, batch: int | None = None, **options: Any) -> tuple[Any, Any]:
        """(model, sample) at the published size, but for the options given."""
        return self.make(self.batch if batch is None else batch, replace(self.size, **options))

    @property
    def __signature__(self) -> inspect.Signature:
        names = ["batch", *(f.name for f in fields(self.size))]
        return inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names])


def build(make: Callable[[], nn.Module]) -> nn.Module:
    """The module that `make` builds; under a FakeTensorMode its parameters and buffers are fake tensors.

    While they build, libraries read numbers from small tensors (rates of stochastic depth, say), which fake tensors do not
    hold. All of them build on the meta device, so they do that here, and each meta tensor becomes a fake one on the CPU.
    """
    if not isinstance(torch.empty(0), FakeTensor):
        return make()
    with unset_fake_temporarily(), torch.device("meta"):
        model = make()
    made: dict[int, torch.Tensor] = {}  # by the id of the meta tensor: a tied parameter stays one

    def fake(t: torch.Tensor) -> torch.Tensor:
        if id(t) not in made:
            data = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu")
            made[id(t)] = nn.Parameter(data, t.requires_grad) if isinstance(t, nn.Parameter) else data
        return made[id(t)]

    for m in model.modules():
        holders: list[dict[str, Any]] = [m._parameters, m._buffers, m.__dict__]
        for held in holders:
            held.update({k: fake(t) for k, t in held.items() if isinstance(t, torch.Tensor)})
    return model
