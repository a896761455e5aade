"""The functions that torch.compile compiles, one for each kind of module and each way to run it.

Dynamo keeps what it has compiled by code object and by backend. So equal modules share one function, with a code object of its
own: a model of many equal blocks compiles one of them.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ...compiling import Compiled, CompileOptions

_aten = torch.ops.aten
_ATTENTION = (
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_attention_math",
)  # fmt: skip
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_mm", "_grouped_mm")


def _operators(names: tuple[str, ...]) -> frozenset[Any]:
    """Every overload of the operators that this torch has."""
    packets = [getattr(_aten, n, None) for n in names]
    return frozenset(getattr(p, o) for p in packets if p is not None for o in p.overloads())


ATTENTION = _operators(_ATTENTION)
SAVED = {"attention": ATTENTION, "products": ATTENTION | _operators(_PRODUCTS)}


def _keep(saved: frozenset[Any], ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in saved else CheckpointPolicy.PREFER_RECOMPUTE


def _keep_attention(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return _keep(SAVED["attention"], ctx, op)


def _keep_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return _keep(SAVED["products"], ctx, op)


_POLICIES = {"attention": _keep_attention, "products": _keep_products}


def _as_it_is(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return type(module).forward(module, *args, **kwargs)


def _again(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return checkpoint(functools.partial(type(module).forward, module), *args, use_reentrant=False, **kwargs)


def _again_but_for(policy: Any) -> Callable[..., Any]:
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)

    def run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        forward = functools.partial(type(module).forward, module)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    return run


_RUNS = {"min-cut": _as_it_is, "inputs": _again} | {k: _again_but_for(p) for k, p in _POLICIES.items()}
_compiled: dict[Any, Callable[..., Any]] = {}


def compiled_call(kind: Any, way: Compiled, options: CompileOptions) -> Callable[..., Any]:
    """The compiled function of (module, *arguments) for modules of one kind. The first call compiles.

    kind : equal for modules that share what is compiled (see `recording.signature`).
    """
    key = kind, way, options.mode, tuple(sorted(options.options.items()))
    if key not in _compiled:
        run = _RUNS[way.saves]
        own = types.FunctionType(
            run.__code__.replace(), run.__globals__, run.__name__, run.__defaults__, run.__closure__
        )
        settings = dict(options.options) or None
        _compiled[key] = torch.compile(own, fullgraph=True, dynamic=False, mode=options.mode, options=settings)
    return _compiled[key]
