"""Results of matrix products, convolutions and attention, which a part that runs again may save.

The shapes of a part that cannot be captured may change from step to step, so a rule does not name results: it says how many
FLOPs a byte must have cost. This is selective activation checkpointing (`torch.utils.checkpoint`), with a rule that is chosen
by what it saves and costs.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from ...parts.plan import SaveRule
from ..private import TorchDispatchMode

aten = torch.ops.aten
_DIGITS = 2  # of a price: results whose prices differ by less are saved together


def _row(i: int) -> Callable[[Sequence[Any]], int]:
    return lambda args: args[i].shape[-1]


# operator -> the length of the sum behind each number of its result
_SUMMED: dict[Any, Callable[[Sequence[Any]], int]] = {
    aten.mm: _row(0),
    aten.bmm: _row(0),
    aten.addmm: _row(1),
    aten.baddbmm: _row(1),
    **{getattr(aten, name): _row(0) for name in ("_scaled_mm", "_grouped_mm") if hasattr(aten, name)},
    aten.convolution: lambda args: math.prod(args[1].shape[1:]),
    **{
        getattr(aten, name): lambda args: 2 * args[1].shape[-2]
        for name in (
            "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
        )
        if hasattr(aten, name)
    },
}  # fmt: skip
PRODUCTS = frozenset(_SUMMED)  # operators whose results are worth saving


def price(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """FLOPs that make one byte of the operator's result; 0.0: the result is cheap, or must not be saved."""
    summed = _SUMMED.get(getattr(op, "overloadpacket", None))
    if summed is None or _draws(op, args, kwargs):
        return 0.0
    return float(f"{2.0 * summed(args) / args[0].element_size():.{_DIGITS}g}")


def _draws(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call draws random numbers. If it did not run again, later ones would draw others than before."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    given = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | dict(kwargs)
    return given.get("dropout_p", 0.0) != 0.0


class Prices(TorchDispatchMode):
    """Notes the prices of the results of operators that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[float] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.add(price(func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


class _Once:
    """Gives saved results back in the first backward, which uses them up; a further one (`retain_graph`) makes all again."""

    def __init__(self, cached: contextlib.AbstractContextManager[Any]):
        self._cached = cached
        self._entered: list[contextlib.AbstractContextManager[Any]] = []
        self._used = False

    def __enter__(self) -> None:
        now = contextlib.nullcontext() if self._used else self._cached
        self._used = True
        self._entered.append(now)
        now.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._entered.pop().__exit__(*error)


def contexts(rule: SaveRule) -> tuple[Any, Any]:
    """Context managers for `torch.utils.checkpoint`: of the first run, which saves, and of the runs in backward."""

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        dear = price(op, args, kwargs) >= rule.least
        return CheckpointPolicy.MUST_SAVE if dear else CheckpointPolicy.PREFER_RECOMPUTE

    saving, cached = create_selective_checkpoint_contexts(policy)
    return saving, _Once(cached)
