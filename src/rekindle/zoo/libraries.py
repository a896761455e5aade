"""What other libraries' models need before they can be built here: the import, and tensors without data.

timm and transformers import torchvision, and so come after its shim.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ..errors import RekindleError
from ..torch.capture.private import FakeTensor, unset_fake_temporarily
from .torchvision_shim import import_torchvision


def import_library(name: str) -> ModuleType:
    """torchvision, timm or transformers, or a submodule of one.

    Raises
    ------
    RekindleError : it, or a package that it imports, is not installed.
    """
    import_torchvision()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        raise RekindleError(
            f"this needs the package {e.name!r}, which is not installed; install torch first, then run: "
            f"pip install --no-deps {name.partition('.')[0]}, and pip install what it imports"
        ) from e


def build(make: Callable[[], nn.Module]) -> nn.Module:
    """The module that `make` builds; under a FakeTensorMode with fake tensors.

    Libraries read numbers off small tensors while they build (rates of stochastic depth, say), which a fake tensor has
    not. But they all build on the meta device: they do so here, and each meta tensor becomes a fake one on the CPU.
    """
    if not isinstance(torch.empty(0), FakeTensor):
        return make()
    with unset_fake_temporarily(), torch.device("meta"):
        model = make()
    made: dict[int, torch.Tensor] = {}  # a tensor with two names is one

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
