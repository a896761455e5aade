"""Ops that can write their result over one of their arguments, with the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .tensor_iterator import result_strides

aten = torch.ops.aten
_FITS: dict[Callable[..., Any], Callable[..., bool]] = {}  # call that overwrites only sometimes -> when


def where_it_fits(fits: Callable[..., bool], over: Callable[..., Any], op: Callable[..., Any]) -> Callable[..., Any]:
    """A call that writes over an argument if `fits` says of the call's arguments that it can, and else makes a new result."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return over(*args, **kwargs) if fits(*args) else op(*args, **kwargs)

    _FITS[call] = fits
    return call


def may_overwrite(target: Any, position: int, args: Sequence[Any]) -> bool:
    """Whether the call of `target` that writes over the argument at this position does so for such arguments, fake ones too.
    The graph counts no memory for an overwrite, so it asks the same question as the step that runs."""
    fits = _FITS.get(OVERWRITES[target][position])
    return fits is None or fits(*args)


def _unary(inplace: Any) -> dict[int, Callable[..., Any]]:
    return {0: inplace}


def _grad_input(out: Any) -> dict[int, Callable[..., Any]]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return out(*args, **kwargs, grad_input=args[0])

    return {0: call}


def _binary(op: Any, inplace: Any, out: Any) -> dict[int, Callable[..., Any]]:
    return {0: inplace, 1: where_it_fits(_keeps_strides(1), lambda a, b, **k: out(a, b, **k, out=b), op)}


def _where(position: int) -> Callable[..., Any]:
    op, out = aten.where.self, aten.where.self_out
    return where_it_fits(_keeps_strides(position), lambda *args: out(*args, out=args[position]), op)


def _keeps_strides(position: int) -> Callable[..., bool]:
    """Whether an element-wise op of tensors gives its result the strides of the argument at this position. A gradient from the
    loss may have other strides than in the graph, and a part of a larger tensor has gaps. Arguments of equal strides do not
    settle it: all may have gaps, or strides of their own in a dimension of size 1, by which later ops choose their kernels."""

    def fits(*args: torch.Tensor) -> bool:
        over = args[position]
        return result_strides(over.shape, args) == over.stride()

    return fits


def _rows(op: Any, out: Any, name: str = "out") -> dict[int, Callable[..., Any]]:
    # Such a kernel gives a contiguous result, and writes wrong numbers over an argument that is not.
    def over(x: Any, *args: Any, **kwargs: Any) -> Any:
        return out(x, *args, **kwargs, **{name: x})

    return {0: where_it_fits(lambda x, *_: x.is_contiguous(), over, op)}


def _scatter(x: torch.Tensor, part: torch.Tensor, *where: Any, **kwargs: Any) -> torch.Tensor:
    aten.slice.Tensor(x, *where, **kwargs).copy_(part)
    return x


# op -> {position of an argument: call that writes over it}. The `out=` or in-place form gives the same bits when the output
# lies over that argument: element-wise kernels read each element before they write it, and softmaxes read a row to its end
# before they write it. `out=` forms that compute elsewhere and copy are not here.
OVERWRITES: dict[Any, dict[int, Callable[..., Any]]] = {
    aten.relu.default: _unary(aten.relu_.default),
    aten.sigmoid.default: _unary(aten.sigmoid_.default),
    aten.tanh.default: _unary(aten.tanh_.default),
    aten.silu.default: _unary(aten.silu_.default),
    aten.gelu.default: _unary(aten.gelu_.default),
    aten.hardtanh.default: _unary(aten.hardtanh_.default),
    aten.hardswish.default: _unary(aten.hardswish_.default),
    aten.leaky_relu.default: _unary(aten.leaky_relu_.default),
    aten.elu.default: _unary(aten.elu_.default),
    aten.neg.default: _unary(aten.neg_.default),
    aten.div.Scalar: _unary(aten.div_.Scalar),
    aten.mul.Scalar: _unary(aten.mul_.Tensor),  # `mul_.Scalar` rounds the number to half precision first
    aten.add.Scalar: _unary(aten.add_.Scalar),
    aten.add.Tensor: _binary(aten.add.Tensor, aten.add_.Tensor, aten.add.out),
    aten.mul.Tensor: _binary(aten.mul.Tensor, aten.mul_.Tensor, aten.mul.out),
    aten.sub.Tensor: _unary(aten.sub_.Tensor),
    aten.div.Tensor: _unary(aten.div_.Tensor),
    aten.threshold_backward.default: _grad_input(aten.threshold_backward.grad_input),
    aten.sigmoid_backward.default: _grad_input(aten.sigmoid_backward.grad_input),
    aten.tanh_backward.default: _grad_input(aten.tanh_backward.grad_input),
    aten.silu_backward.default: _grad_input(aten.silu_backward.grad_input),
    aten.gelu_backward.default: _grad_input(aten.gelu_backward.grad_input),
    aten.hardtanh_backward.default: _grad_input(aten.hardtanh_backward.grad_input),
    aten.leaky_relu_backward.default: _grad_input(aten.leaky_relu_backward.grad_input),
    aten.elu_backward.default: _grad_input(aten.elu_backward.grad_input),
    aten._softmax.default: _rows(aten._softmax.default, aten._softmax.out),
    aten._log_softmax.default: _rows(aten._log_softmax.default, aten._log_softmax.out),
    aten._softmax_backward_data.default: _rows(
        aten._softmax_backward_data.default, aten._softmax_backward_data.out, "grad_input"
    ),
    aten._log_softmax_backward_data.default: _rows(
        aten._log_softmax_backward_data.default, aten._log_softmax_backward_data.out
    ),
    aten.masked_fill.Scalar: _unary(aten.masked_fill_.Scalar),
    aten.addmm.default: _unary(aten.addmm_.default),
    aten.slice_scatter.default: {0: _scatter},
    aten.where.self: {1: _where(1), 2: _where(2)},
}
