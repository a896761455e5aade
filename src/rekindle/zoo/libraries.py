"""Imports torchvision, timm and transformers with errors that say what to install, and builds their models without data."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ..errors import RekindleError
from ..torch.private import FakeTensor, unset_fake_temporarily


def import_library(name: str) -> ModuleType:
    """torchvision, timm or transformers, or a submodule of one.

    timm and transformers import torchvision on their own, and hide why that fails: where it is installed, it is imported first.

    Raises
    ------
    RekindleError : the library, or a package that it imports, is not installed; or the installed torchvision was compiled
        for another torch.
    """
    try:
        if importlib.util.find_spec("torchvision") is not None:
            _import_torchvision()
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        raise RekindleError(
            f"this needs the package {e.name!r}, which is not installed; install torch first, then run: "
            f"pip install --no-deps {name.partition('.')[0]}, and pip install what it imports"
        ) from None


def _import_torchvision() -> None:
    """Import it, or raise a RekindleError that says why it cannot be imported beside this torch."""
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        raise
    except (ImportError, OSError, RuntimeError) as e:
        raise RekindleError(
            f"torchvision {importlib.metadata.version('torchvision')} is installed, but it cannot be imported beside torch "
            f"{torch.__version__}: {e}. Most likely it was compiled for another torch. Install the build that matches this "
            "torch: https://pytorch.org/get-started/locally names its index URL, then run: "
            "pip install --no-deps --force-reinstall --index-url URL torchvision"
        ) from None


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
