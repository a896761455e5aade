"""The order in which the elements of a tensor lie in memory, told from its shape and strides alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ..private import disable_modes, make_channels_last_strides_for, make_contiguous_strides_for, suggest_memory_format
from .strides import result_strides

Ints = tuple[int, ...]
_REMEMBERED = 4096  # shapes with strides; a step asks for the same ones each time


def strides_of_packed(shape: Sequence[int], strides: Sequence[int]) -> Ints:
    """Strides in whose order the elements of a tensor are packed: its own if it has no gaps, else contiguous ones."""
    return _strides_of_packed(tuple(shape), tuple(strides))


@lru_cache(_REMEMBERED)
def _strides_of_packed(shape: Ints, strides: Ints) -> Ints:
    with disable_modes():
        dense = torch.ops.aten.is_non_overlapping_and_dense(torch.empty_strided(shape, strides, device="meta"))
    return strides if dense else tuple(make_contiguous_strides_for(shape))


def elements_spanned(t: Tensor) -> int:
    """How many elements of its storage lie between the first and the last of a tensor's, both included; of a tensor without
    strides all of its elements."""
    if t.layout is not torch.strided:
        return int(t.numel())
    return 1 + sum((int(n) - 1) * int(s) for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0


def has_gaps(t: Tensor) -> bool:
    """Whether elements of t lie apart in memory that a copy of it, its dimensions in the same order, would put side by side. A
    tensor that repeats elements (a stride is 0) has none."""
    return 0 not in t.stride() and t.stride() != _copied(tuple(t.shape), t.stride())


@lru_cache(_REMEMBERED)
def _copied(shape: Ints, strides: Ints) -> Ints:
    with disable_modes():
        return torch.empty_like(torch.empty_strided(shape, strides, device="meta")).stride()


def strides_of_slice(shape: Sequence[int], strides: Sequence[int], part: Sequence[int]) -> Ints:
    """Strides of a slice as a tensor of its own: no gaps, the dimensions in the order in which they lie in the whole.

    shape, strides : of the whole. If that has gaps, the strides stay as they are: those of a view. part : shape of the slice.
    """
    if strides_of_packed(shape, strides) != tuple(strides):
        return tuple(strides)
    made, step = [0] * len(shape), 1
    for d in sorted(range(len(shape)), key=lambda d: (strides[d], shape[d] != 1, -d)):
        made[d] = step
        step *= part[d]
    return tuple(made)


def element_wise_strides(shape: Sequence[int], first: Sequence[int], second: Sequence[int]) -> Ints:
    """Strides of a new result of an element-wise kernel, from the strides of its two arguments of this shape."""
    return _of_two(result_strides, tuple(shape), tuple(first), tuple(second))


def dropout_strides(shape: Sequence[int], gradient: Sequence[int], mask: Sequence[int], device: torch.device) -> Ints:
    """Strides of the result of `aten.native_dropout_backward`: on a GPU its kernel looks at the gradient's layout alone."""
    rule = _as_suggested if device.type == "cuda" else result_strides
    return _of_two(rule, tuple(shape), tuple(gradient), tuple(mask))


@lru_cache(_REMEMBERED)
def _of_two(rule: Callable[[Ints, list[Tensor]], Ints], shape: Ints, first: Ints, second: Ints) -> Ints:
    with disable_modes():
        return tuple(rule(shape, [torch.empty_strided(shape, s, device="meta") for s in (first, second)]))


def _as_suggested(shape: Ints, operands: list[Tensor]) -> Ints:
    last = suggest_memory_format(operands[0]) != torch.contiguous_format
    return tuple(make_channels_last_strides_for(shape) if last else make_contiguous_strides_for(shape))
