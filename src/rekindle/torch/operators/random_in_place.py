"""Random ops in place on a tensor that is not contiguous, captured so that they draw the numbers that eager draws.

torch captures `x.bernoulli_(p)` as an op that draws into a contiguous tensor, and `x.normal_()` as one that draws into a copy
of x without gaps. A kernel gives its random numbers to the elements in the order of the strides, and uses another algorithm if
the tensor is not contiguous. Captured that way, an element gets another number than in eager. On processors of Intel,
`bernoulli_` goes by index and not by stride, so no fixed order is right everywhere. The operators here draw in place, into new
memory with the strides of x, and so use the kernel that eager uses.
The other random ops draw the same numbers into x as into torch's copy.

Source: aten/src/ATen/native/Distributions.cpp (bernoulli, normal_functional), cpu/DistributionKernels.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..private import FunctionalTensor, OpOverload
from .corrected import where_it_fits
from .memory_order import elements_spanned
from .record import Operator, OwnOp, define
from .strides import result_strides

aten = torch.ops.aten


def _draw_like(draw: Callable[..., Any]) -> Callable[..., Tensor]:
    def call(x: Tensor, *numbers: float) -> Tensor:
        drawn = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
        draw(drawn, *numbers)
        return drawn if _is_dense(x) else _fake(x).copy_(drawn)

    return call


def _draw_over(draw: Callable[..., Any]) -> Callable[..., Tensor]:
    def call(x: Tensor, *numbers: float) -> Tensor:
        draw(x, *numbers)
        return x

    return where_it_fits(lambda x, *_: _is_dense(x), call, _draw_like(draw))


def _is_dense(x: Tensor) -> bool:
    return bool(aten.is_non_overlapping_and_dense(x))


def _fake(x: Tensor, *numbers: float) -> Tensor:
    return x.new_empty_strided(x.shape, x.stride() if _is_dense(x) else result_strides(x.shape, [x]))


def _workspace(x: Tensor, *numbers: float) -> int:
    """Bytes of the memory with gaps."""
    return 0 if _is_dense(x) else x.element_size() * elements_spanned(x)


def _define(schema: str, draw: Callable[..., Any]) -> OpOverload:
    own = OwnOp(_draw_like(draw), _fake, _workspace)
    return define(schema, own, tags=(torch.Tag.nondeterministic_seeded,))


# Ops in place -> operators that return the numbers in a new tensor, which has the strides of x, or if x has gaps, the same
# order of dimensions without gaps.
OUT_OF_PLACE: dict[Any, OpOverload] = {
    aten.bernoulli_.float: _define("bernoulli_like(Tensor x, float p=0.5) -> Tensor", aten.bernoulli_.float),
    aten.normal_.default: _define("normal_like(Tensor x, float mean=0, float std=1) -> Tensor", aten.normal_.default),
}  # fmt: skip
OPERATORS = {
    own._schema.name.split("::")[1]: Operator(over={own: {0: _draw_over(draw)}}) for draw, own in OUT_OF_PLACE.items()
}


def draws_otherwise(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether torch would capture this call as an op that may draw other numbers; calls with a generator are refused later."""
    traced = func in OUT_OF_PLACE and isinstance(args[0], FunctionalTensor)
    return traced and not args[0].is_contiguous() and kwargs.get("generator") is None
