"""Random arguments for one call of an op, on the device of the call: numbers that the op could be given in a training step.

Most are normally distributed. Arguments that other ops make for this one (indices, saved statistics, the results of the forward
op) are computed, or drawn, so that they are valid; an index out of range would end the process on a GPU.

Kernels add up sixteen-bit numbers in float32, and round the sum to sixteen bits: of normally distributed numbers another order
of the sum shows in one of many thousand results, and a probe may pass slices that differ. It shows in one of some twenty where
numbers cancel: ones of both signs, and others so small that beside a one a float32 sum keeps few of their digits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from ..operators.cut_call import Call
from ..operators.memory_order import elements_spanned
from ..operators.table import record_of
from .cuts import tensor_arguments

_BLOCK = 2**20 - 3  # numbers that are drawn; larger tensors repeat them, at a distance that is a prime
_ONES = 0.25  # share of numbers of size one among those that cancel: a guess, for sums of a few products and of many
_KINDS = 8  # whole numbers of element-wise ops are below this one


def random_tensors(node: fx.Node, cancel: bool = False) -> list[torch.Tensor]:
    """Real tensors for `tensor_arguments(node)`, laid out as the fake ones; a node that occurs twice gives one tensor.

    They are drawn from the default generators of their devices. cancel : sixteen-bit numbers cancel, so that the order of sums
    shows.
    """
    call = Call(node)
    nodes = tensor_arguments(node)
    drawn = {n: _drawn(n.meta["val"], call, cancel) for n in dict.fromkeys(nodes)}
    sample = record_of(call.name).sample
    if sample is None:
        return [drawn[n] for n in nodes]
    given = {k: map_arg(v, lambda n: drawn.get(n)) for k, v in call.values.items()}  # type: ignore[arg-type, return-value]
    valid = sample(given)
    places = zip(nodes, call.tensors, strict=True)
    return [_as(valid[name, i], n.meta["val"]) if (name, i) in valid else drawn[n] for n, (name, i, _) in places]


def with_tensors(node: fx.Node, tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of the node's call with these tensors in place of `tensor_arguments(node)`."""
    rest = iter(tensors)
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: next(rest))
    return tuple(args), dict(kwargs)


def _drawn(like: torch.Tensor, call: Call, cancel: bool) -> torch.Tensor:
    """Normally distributed numbers, or absolute values of such; bools; whole numbers for element-wise ops, else zeros."""
    n = elements_spanned(like)
    options: Any = {"dtype": like.dtype, "device": like.device}
    count = min(n, _BLOCK)
    if like.dtype.is_floating_point or like.dtype.is_complex:
        block = torch.randn(count, **options)
        block = _cancelling(block) if cancel and few_bits(like.dtype) else block
        block = block.abs() if record_of(call.name).positive else block
    elif like.dtype is torch.bool:
        block = torch.rand(count, device=like.device) < 0.5
    elif torch.Tag.pointwise in call.node.target.tags:  # type: ignore[union-attr]
        block = torch.randint(_KINDS, (count,), **options)
    else:
        block = torch.zeros(count, **options)
    memory = block if count == n else torch.empty(n, **options)
    for begin in range(0, n if count < n else 0, _BLOCK):
        part = memory[begin : begin + _BLOCK]
        part.copy_(block[: len(part)])
    return memory.as_strided(like.shape, like.stride())


def few_bits(dtype: torch.dtype) -> bool:
    """Whether sums of such numbers are rounded to fewer bits than they are added up in."""
    return dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize


def _cancelling(block: torch.Tensor) -> torch.Tensor:
    """Some of the numbers as ones with their signs, the others very small."""
    small = torch.finfo(torch.float32).eps / torch.finfo(block.dtype).eps
    ones = torch.rand(block.shape, device=block.device) < _ONES
    return torch.where(ones, block.sign(), block * small)


def _as(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor with the type and the strides of a fake one."""
    if (t.dtype, t.stride()) == (like.dtype, like.stride()):
        return t
    memory = torch.empty(elements_spanned(like), dtype=like.dtype, device=like.device)
    one = t[tuple(slice(0, 1 if s == 0 else None) for s in like.stride())]  # elements in one place are one number
    memory.as_strided(one.shape, like.stride()).copy_(one)
    return memory.as_strided(like.shape, like.stride())
