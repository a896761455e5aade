"""The functions that torch.compile compiles, one for each kind of module and each way to run it.

Dynamo keeps what it has compiled by code object and by backend. So equal modules share one function, with a code object of its
own: a model of many equal blocks compiles one of them.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...compiling import IN_SLICES, Compiled, CompileOptions
from .compiler import as_partitioner, mode_settings
from .saving import Saving

SHARED_BYTES = 2**18  # more than the labels of a slice, and less than its logits; a guess

_compiled: dict[Any, Callable[..., Any]] = {}


def compiled_call(kind: Any, way: Compiled, options: CompileOptions) -> Callable[..., Any]:
    """The compiled function of (module, *arguments) for modules of one kind. The first call compiles.

    kind : equal for modules that share what is compiled (see `recording.signature`).
    """
    key = kind, way, options.key
    if key not in _compiled:
        run, how = own_function(own_forward), settings(way, options)
        _compiled[key] = torch.compile(run, fullgraph=True, dynamic=False, options=how or None)
    return _compiled[key]


def settings(way: Compiled, options: CompileOptions) -> dict[str, Any]:
    """Inductor's settings for a way."""
    how = {**mode_settings(options.mode), **options.options}
    if way.saves not in ("min-cut", "gradients"):
        as_partitioner(Saving)
        how["custom_partitioner_fn"] = Saving(way.saves)
    if way.saves in IN_SLICES:
        # Inductor would fuse the kernels of two slices, as both read the labels, and hold the logits of both.
        how.setdefault("score_fusion_memory_threshold", SHARED_BYTES)
    return how


def own_function(run: Any) -> Callable[..., Any]:
    """The function with a code object of its own."""
    return types.FunctionType(run.__code__.replace(), run.__globals__, run.__name__, run.__defaults__, run.__closure__)


def own_forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of the module's class."""
    return type(module).forward(module, *args, **kwargs)
