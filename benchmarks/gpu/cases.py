"""The models of a GPU run, with batch and precision."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import more_models
import torch
from torch import nn

from rekindle.torch import accept
from rekindle.torch.tensors.loss import default_loss
from rekindle.zoo import seeds

MIB, GIB = 2**20, 2**30
SOLD_SHARE = 0.95  # a device with this share of a cap counts as one of that size: an 80 GB card has 79 GiB


@dataclass(frozen=True)
class Case:
    """A model by name.

    model, options : as `more_models.load` takes them. autocast : bfloat16 where autocast allows.
    unit : what one element of the batch is called.
    unused : results that the training loop does not read; see `rekindle.trace`.
    close, copied : whether a plan whose sums may round (parity="close") is measured too, and one that copies values to the
        host.
    """

    name: str
    model: str
    batch: int
    options: dict[str, Any] = field(default_factory=dict)
    autocast: bool = False
    unit: str = "images"
    unused: tuple[str, ...] = ()
    close: bool = False
    copied: bool = False

    def load(self, kind: str, batch: int | None = None) -> tuple[nn.Module, Any]:
        """Model and sample on the device."""
        model, sample = more_models.load(self.model, batch=batch or self.batch, **self.options)
        return model.to(kind), on_device(sample, kind)

    def context(self, kind: str) -> AbstractContextManager[Any]:
        """The context in which forward runs."""
        return torch.autocast(kind, torch.bfloat16) if self.autocast else contextlib.nullcontext()

    def step(self, model: nn.Module, sample: Any, kind: str) -> Callable[[], torch.Tensor]:
        """One training step, forward and backward, by the model's present forward; returns the loss. Parameters' gradients
        add up in `.grad`; the sample's are new in each step."""
        args, kwargs = accept.sample(sample)
        leaves = [t for t in [*args, *kwargs.values()] if isinstance(t, torch.Tensor) and t.requires_grad]

        def step() -> torch.Tensor:
            for t in leaves:
                t.grad = None
            with self.context(kind):
                loss = default_loss(model(*args, **kwargs))
            loss.backward()  # outside of autocast, as in every training loop
            return loss.detach()

        return step


def on_device(sample: Any, kind: str) -> Any:
    """A sample's tensors on the device, leaves as they were."""

    def move(t: Any) -> Any:
        return t.detach().to(kind).requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t

    return torch.utils._pytree.tree_map(move, sample)


def repeated(sample: Any, times: int) -> Any:
    """A sample of batch 1 repeated to batch `times`, on the same device."""

    def repeat(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        return t.detach().repeat(times, *[1] * (t.ndim - 1)).requires_grad_(t.requires_grad)

    return torch.utils._pytree.tree_map(repeat, sample)


def held_bytes(model: nn.Module, sample: Any) -> int:
    """Bytes of parameters, gradients, buffers and the sample."""
    params = list(model.parameters())
    tensors = [*params, *(p.grad for p in params if p.grad is not None), *model.buffers()]
    tensors += [t for t in torch.utils._pytree.tree_leaves(sample) if isinstance(t, torch.Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def with_gradients(model: nn.Module) -> nn.Module:
    """The model with a gradient of zeros for every trained parameter, as a plan counts them."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    return model


WITH_SUMS = ("alexnet", "vgg16", "resnet18")  # published models whose largest convolution sets the floor
_TINY_GPT2 = {"layers": 1, "d": 64, "heads": 2, "length": 32, "vocab": 1000}
_TINY_GPT = {"n_layer": 2, "d": 64, "heads": 2, "length": 32, "vocab": 100}


def step_cases(small: bool) -> list[Case]:
    """The cases whose steps are measured: GPT-2 and ViT-B/16 in mixed precision, and the published suite at its batches.

    small : two tiny models instead.
    """
    if small:
        return [
            Case("gpt2", "gpt", 2, _TINY_GPT, autocast=True, unit="sequences", copied=True),
            Case("gpt2_small-unused", "gpt2_small", 2, _TINY_GPT2, unit="sequences", unused=("logits",), close=True),
            Case("resnet18", "resnet18", 4, {"image": 64}),
        ]
    modern = [
        Case("gpt2", "gpt2", 8, autocast=True, unit="sequences", copied=True),
        Case("gpt2_small-unused", "gpt2_small", 8, autocast=True, unit="sequences", unused=("logits",), close=True),
        Case("vit_b16", "vit_b16", 64, autocast=True, copied=True),
    ]
    return modern + [
        Case(r.model, r.model, r.batch, {"image": r.image}, close=r.model in WITH_SUMS) for r in seeds.ROWS
    ]


def largest_cases(small: bool) -> list[Case]:
    """The cases whose batch grows under a cap, with the batch to begin at. small : one tiny model instead."""
    if small:
        return [Case("unet", "unet", 1, {"image": 32, "width": 8, "depth": 2})]
    return [
        Case("resnet50", "resnet50", 32, {"input_grad": False}),
        Case("gpt2_medium", "gpt2_medium", 1, autocast=True, unit="sequences"),
        Case("unet3d", "unet3d", 1, autocast=True, unit="volumes"),
    ]


def caps(small: bool) -> dict[str, int]:
    """Memory caps in bytes, by name."""
    return {"16 MiB": 16 * MIB} if small else {f"{n} GiB": n * GIB for n in (24, 16, 80)}
