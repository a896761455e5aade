"""The published image models, as torchvision defines them, without weights."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import RekindleError
from . import seeds

_INCEPTION = {"aux_logits": False, "transform_input": False, "init_weights": False}


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


def image_sample(batch: int, image: int, input_grad: bool) -> Tensor:
    """Random images in [0, 1): float32 [batch, 3, image, image]. The published protocol computes their gradient too."""
    return torch.rand(batch, 3, image, image, requires_grad=input_grad)


def _load(
    name: str, batch: int | None, image: int | None, input_grad: bool, **keywords: Any
) -> tuple[nn.Module, Tensor]:
    row = seeds.row(name)
    model = getattr(import_library("torchvision.models"), name)(weights=None, **keywords)
    return model, image_sample(batch or row.batch, image or row.image, input_grad)


def _resnet(
    name: str, batch: int | None = None, *, image: int | None = None, input_grad: bool = True
) -> tuple[nn.Module, Tensor]:
    """A model without dropout."""
    return _load(name, batch, image, input_grad)


def _with_dropout(
    name: str, keyword: str, more: dict[str, Any], batch: int | None = None, *,
    dropout: float = 0.0, image: int | None = None, input_grad: bool = True,
) -> tuple[nn.Module, Tensor]:  # fmt: skip
    """A model with dropout, whose probability torchvision takes as `keyword`. The published protocol has none."""
    return _load(name, batch, image, input_grad, **{keyword: dropout}, **more)


MODELS: dict[str, Callable[..., tuple[nn.Module, Tensor]]] = {
    **{n: partial(_with_dropout, n, "dropout", {}) for n in ("alexnet", "vgg11", "vgg13", "vgg16", "vgg19")},
    **{f"resnet{n}": partial(_resnet, f"resnet{n}") for n in (18, 34, 50, 101, 152)},
    **{f"densenet{n}": partial(_with_dropout, f"densenet{n}", "drop_rate", {}) for n in (121, 161, 169, 201)},
    "inception_v3": partial(_with_dropout, "inception_v3", "dropout", _INCEPTION),
}
