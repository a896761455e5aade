"""Modules and parameters that torch.distributed has sharded (`fully_shard`, tensor parallel).

`fully_shard` puts a class of its own before the module's class, and DTensors in place of its parameters. While the module's own
forward and backward run, the parameters are whole tensors again. So a plan that was made for the module before it was sharded
serves it afterwards. A plan of a module around it does not: it reads the parameters while they are sharded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .objects import values_set


def is_sharded(t: Any) -> bool:
    """Whether the tensor is a DTensor. Known by the name of its class: importing DTensor takes time."""
    return _has(type(t), "DTensor")


def own_class(m: nn.Module) -> type:
    """The module's class, without the one that `fully_shard` puts before it."""
    kinds = type(m).__mro__
    return kinds[2] if _is_of_torch(kinds[1], "FSDPModule") else kinds[0]


def class_name(m: nn.Module) -> str:
    """Name of the module's class, without the one that `fully_shard` puts before it."""
    return own_class(m).__name__


def is_fully_sharded(m: nn.Module) -> bool:
    """Whether `fully_shard` was called for the module itself."""
    return _has(type(m), "FSDPModule")


def inside(model: nn.Module) -> list[nn.Module]:
    """The submodules for which `fully_shard` was called, without the model itself."""
    return [m for m in model.modules() if m is not model and is_fully_sharded(m)]


def any_fully_sharded(model: nn.Module) -> bool:
    """Whether `fully_shard` was called for the model or a submodule."""
    return any(map(is_fully_sharded, model.modules()))


@torch.no_grad()
def local(t: torch.Tensor) -> torch.Tensor:
    """The piece of a sharded tensor that this process holds; another tensor as it is."""
    return t.to_local() if is_sharded(t) else t  # type: ignore[attr-defined]


@contextlib.contextmanager
def sharded_again(model: nn.Module) -> Iterator[None]:
    """Frees the whole parameters at the end that a forward without a backward, or one that fails, leaves."""
    try:
        yield
    finally:
        for m in model.modules():
            if is_fully_sharded(m):
                m.reshard()  # type: ignore[operator]


@dataclass(frozen=True)
class Whole:
    """How a sharded parameter looks while its module runs. like : it, without data."""

    like: torch.Tensor
    requires_grad: bool

    @classmethod
    def of(cls, p: torch.Tensor) -> Whole:
        return cls(torch.empty_like(p, device="meta"), p.requires_grad)

    def made(self, device: torch.device) -> nn.Parameter:
        """Such a parameter, of small numbers: they are as good as others to measure times, and no process has the true ones."""
        made = torch.empty_like(self.like, device=device)
        made.copy_(torch.linspace(-0.1, 0.1, made.numel(), device=device).view(made.shape))
        return nn.Parameter(made, self.requires_grad)


def made_whole(module: nn.Module, whole: Mapping[str, Whole]) -> AbstractContextManager[None]:
    """Inside, the module has whole parameters in place of its sharded ones, with other numbers. No other process takes part.

    whole : name of each parameter -> how it looks while the module runs.
    """
    made: dict[int, nn.Parameter] = {}
    put: list[tuple[dict[str, Any], str, nn.Parameter]] = []
    for name, p in module.named_parameters(remove_duplicate=False):
        if is_sharded(p) and name in whole:
            path, _, last = name.rpartition(".")
            if id(p) not in made:  # a parameter may have several names
                made[id(p)] = whole[name].made(p.device)
            put.append((module.get_submodule(path)._parameters, last, made[id(p)]))
    return values_set(put)


def sharded_parameter(model: nn.Module) -> str | None:
    """Name of the first parameter that is sharded now; None: there is none."""
    return next((name for name, p in model.named_parameters() if is_sharded(p)), None)


def order_that_works(model: nn.Module) -> str:
    """In which order a sharded model can be planned, for an error's message."""
    if any_fully_sharded(model):
        return (
            "a plan reads whole parameters, and fully_shard makes them whole only while the submodule runs that it was called "
            "for. Plan these submodules first, rekindle.checkpoint(model, sample, …, parts='blocks.*'), then call fully_shard "
            "for each of them and for the model; or call rekindle.checkpoint(model, sample, …) for the sharded model in all "
            "processes at once, without strict=True: it plans the submodules"
        )
    return (
        "a plan cannot run tensor-parallel layers. Plan only submodules that parallelize_module does not touch, before it is "
        "called: rekindle.checkpoint(model, sample, …, parts=…)"
    )


def _has(kind: type, name: str) -> bool:
    return any(_is_of_torch(c, name) for c in kind.__mro__)


def _is_of_torch(c: type, name: str) -> bool:
    return c.__name__ == name and c.__module__.startswith("torch.")
