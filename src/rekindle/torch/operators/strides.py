"""The strides of results as PyTorch's kernels for the CPU choose them: element-wise kernels, and the rules that records name.

In a dimension of size 1 any stride is valid, and the shape rules for fake tensors choose other ones than the kernels. A batch
norm or convolution that reads the result chooses its algorithm by these strides, and would round differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..private import make_channels_last_strides_for, make_contiguous_strides_for, suggest_memory_format

Shape = tuple[int, ...]
# (number of a result, the result as torch's shape rule makes it, the op's arguments) -> the strides of the kernel's result
Strides = Callable[[int, torch.Tensor, Sequence[Any]], tuple[int, ...]]


# -- values of `Operator.strides`, and functions that give one ----------------------------------------------------------
def contiguous(i: int, out: torch.Tensor, args: Sequence[Any]) -> tuple[int, ...]:
    """All results are contiguous."""
    return tuple(make_contiguous_strides_for(out.shape))


def contiguous_if_open(result: int) -> Strides:
    """One result is contiguous if dimensions of size 1 leave its strides open: a gradient of weights, say."""

    def rule(i: int, out: torch.Tensor, args: Sequence[Any]) -> tuple[int, ...]:
        return contiguous(i, out, args) if i == result and out.is_contiguous() else out.stride()

    return rule


def as_a_sum(one: int, two: int) -> Strides:
    """Two arguments decide the strides of the first result, as for any element-wise op of two tensors."""

    def rule(i: int, out: torch.Tensor, args: Sequence[Any]) -> tuple[int, ...]:
        return result_strides(out.shape, [args[one], args[two]]) if i == 0 else out.stride()

    return rule


def as_first_if_dense(i: int, out: torch.Tensor, args: Sequence[Any]) -> tuple[int, ...]:
    """Every result has the strides of the first argument if that has no gaps."""
    dense = torch.ops.aten.is_non_overlapping_and_dense(args[0]) and args[0].shape == out.shape
    return args[0].stride() if dense else out.stride()


def laid_out_as(argument: int, norm: bool = False) -> Strides:
    """The first result is channels last or contiguous, as this argument is. norm : the op is a batch norm, which also looks at
    its first argument: the gradient, in backward."""

    def rule(i: int, out: torch.Tensor, args: Sequence[Any]) -> tuple[int, ...]:
        if i > 0:
            return out.stride()
        last = _channels_last(args[argument], args[0] if norm else None)
        return tuple(make_channels_last_strides_for(out.shape)) if last else contiguous(i, out, args)

    return rule


def _channels_last(t: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Whether a kernel treats its deciding argument as channels last. other : the first argument of a batch norm."""
    proposed = suggest_memory_format(t) != torch.contiguous_format
    if other is not None and _has_no_gaps(t):
        alike = _has_no_gaps(other) and proposed == (suggest_memory_format(other) != torch.contiguous_format)
        return not t.is_contiguous() if alike else proposed
    return proposed or t.dim() == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last)


def _has_no_gaps(t: torch.Tensor) -> bool:
    return t.is_contiguous() or t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last)


# -- element-wise kernels ----------------------------------------------------------------------------------------------
# Source: aten/src/ATen/TensorIterator.cpp (fast set-up, order of dimensions, strides of outputs), restated in Python.
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
