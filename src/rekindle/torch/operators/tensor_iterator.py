"""The strides of results of PyTorch's element-wise kernels, by the rules of its TensorIterator.

In a dimension of size 1 any stride is valid, and the shape rules for fake tensors choose other ones than the kernels. A batch
norm or convolution that reads the result chooses its algorithm by these strides, and would round differently.

Source: aten/src/ATen/TensorIterator.cpp (fast set-up, order of dimensions, strides of outputs), restated in Python.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..private import make_channels_last_strides_for, make_contiguous_strides_for

Shape = tuple[int, ...]


def result_strides(shape: Shape, operands: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Strides of a new result of this shape, in elements.

    operands : the kernel's tensor arguments in order; a number counts as a tensor without dimensions.
    """
    if all(t.shape == shape for t in operands):
        if all(t.is_contiguous() for t in operands):
            return tuple(make_contiguous_strides_for(shape))
        if len(shape) == 4 and all(t.is_contiguous(memory_format=torch.channels_last) for t in operands):
            return tuple(make_channels_last_strides_for(shape))
        first = operands[0].stride()
        if all(t.stride() == first and torch.ops.aten.is_non_overlapping_and_dense(t) for t in operands):
            return first
    return _strides(shape, _order(shape, [_broadcast(t, shape) for t in operands]))


def _broadcast(t: torch.Tensor, shape: Shape) -> list[int]:
    """The operand's strides over the result's dimensions; 0 in dimensions that it is broadcast over."""
    missing = len(shape) - t.dim()
    own = [0 if n == 1 and m != 1 else s for n, s, m in zip(t.shape, t.stride(), shape[missing:], strict=True)]
    return [0] * missing + own


def _order(shape: Shape, strides: list[list[int]]) -> list[int]:
    """The dimensions, innermost first. The strides of the first operand that distinguishes two dimensions decide."""
    order = list(reversed(range(len(shape))))
    for i in range(1, len(order)):
        at = i
        for before in range(i - 1, -1, -1):
            turn = _compare(order[before], order[at], shape, strides)
            if turn > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif turn < 0:
                break
    return order


def _compare(one: int, other: int, shape: Shape, strides: list[list[int]]) -> int:
    """1 if dimension `one` belongs behind `other`, -1 if before it, 0 if no operand distinguishes them."""
    for s in strides:
        a, b = s[one], s[other]
        if a == 0 or b == 0:
            continue
        if a != b:
            return -1 if a < b else 1
        if shape[one] > shape[other]:
            return 1
    return 0


def _strides(shape: Shape, order: list[int]) -> tuple[int, ...]:
    if order == list(reversed(range(len(shape)))):
        return tuple(make_contiguous_strides_for(shape))
    strides, step = [0] * len(shape), 1
    for d in order:
        strides[d] = step
        step *= shape[d]
    return tuple(strides)
