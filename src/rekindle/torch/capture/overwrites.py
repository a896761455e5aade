"""Ops that can write their result over one of their arguments, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .tensor_iterator import result_strides

aten = torch.ops.aten


def _unary(inplace: Any) -> dict[int, Callable[..., Any]]:
    return {0: inplace}


def _grad_input(out: Any) -> dict[int, Callable[..., Any]]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return out(*args, **kwargs, grad_input=args[0])

    return {0: call}


def _binary(op: Any, inplace: Any, out: Any) -> dict[int, Callable[..., Any]]:
    def second(a: Any, b: Any, **kwargs: Any) -> Any:
        # A gradient from the loss may have other strides than in the graph: eager's result has those of the first argument.
        return out(a, b, **kwargs, out=b) if _may_hold(b, a) else op(a, b, **kwargs)

    return {0: inplace, 1: second}


def _where(position: int) -> Callable[..., Any]:
    def call(c: Any, a: Any, b: Any) -> Any:
        over, other = (a, b) if position == 1 else (b, a)
        return aten.where.self_out(c, a, b, out=over) if _may_hold(over, other) else aten.where.self(c, a, b)

    return call


def _may_hold(over: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the result of an element-wise op on both has the strides of the tensor that it is to be written over."""
    if over.shape != other.shape or over.stride() == other.stride():
        return True
    return 0 in other.stride() and 0 not in over.stride() and result_strides(over.shape, (over, other)) == over.stride()


def _rows(op: Any, out: Any, name: str = "out") -> dict[int, Callable[..., Any]]:
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        # Such a kernel gives a contiguous result, and writes wrong numbers over an argument that is not.
        return out(x, *args, **kwargs, **{name: x}) if x.is_contiguous() else op(x, *args, **kwargs)

    return {0: call}


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
    aten.mul.Scalar: _unary(aten.mul_.Scalar),
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
