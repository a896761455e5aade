"""Modules and parameters that torch.distributed has sharded (`fully_shard`, tensor parallel).

`fully_shard` puts a class of its own before the module's class, and DTensors in place of its parameters. While the module's own
forward and backward run, the parameters are whole tensors again. So a plan that was made for the module before it was sharded
serves it afterwards. A plan of a module around it does not: it reads the parameters while they are sharded.
"""

from __future__ import annotations

from typing import Any

from torch import nn


def is_sharded(t: Any) -> bool:
    """Whether the tensor is a DTensor. Known by the name of its class: importing DTensor takes time."""
    return _has(type(t), "DTensor")


def own_class(m: nn.Module) -> type:
    """The module's class, without the one that `fully_shard` puts before it."""
    kinds = type(m).__mro__
    return kinds[2] if _is_of_torch(kinds[1], "FSDPModule") else kinds[0]


def sharded_parameter(model: nn.Module) -> str | None:
    """Name of the first parameter that is sharded now; None: there is none."""
    return next((name for name, p in model.named_parameters() if is_sharded(p)), None)


def order_that_works(model: nn.Module) -> str:
    """In which order a sharded model can be planned, for an error's message."""
    if any(_has(type(m), "FSDPModule") for m in model.modules()):
        return (
            "a plan reads whole parameters, and fully_shard makes them whole only while the submodule runs that it was called "
            "for. Plan these submodules first, rekindle.checkpoint(model, sample, …, parts='blocks.*'), then call fully_shard "
            "for each of them and for the model"
        )
    return (
        "a plan cannot run tensor-parallel layers. Plan only submodules that parallelize_module does not touch, before it is "
        "called: rekindle.checkpoint(model, sample, …, parts=…)"
    )


def _has(kind: type, name: str) -> bool:
    return any(_is_of_torch(c, name) for c in kind.__mro__)


def _is_of_torch(c: type, name: str) -> bool:
    return c.__name__ == name and c.__module__.startswith("torch.")
