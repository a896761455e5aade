"""Ops that compute each element of their results from the elements at its place, dropouts among them: one record each.

Torch tags most of them as element-wise, which says how they are cut; records have a rule for some that it does not tag.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .corrected import grad_input, in_place, keeps_strides, over_either, where_it_fits
from .cut_call import broadcast
from .record import EVERYWHERE, Operator
from .strides import as_a_sum, as_first_if_dense, contiguous, result_strides

aten = torch.ops.aten


def _over_where(position: int) -> Callable[..., Any]:
    op, out = aten.where.self, aten.where.self_out
    return where_it_fits(keeps_strides(position), lambda *args: out(*args, out=args[position]), op)


def _dropout(i: int, out: torch.Tensor, args: Sequence[Any]) -> tuple[int, ...]:
    """The mask, its second result, has the strides of the input."""
    return result_strides(out.shape, [args[0]]) if i == 0 else as_first_if_dense(i, out, args)


def _rrelu_backward(i: int, out: torch.Tensor, args: Sequence[Any]) -> tuple[int, ...]:
    """Evaluation uses another kernel."""
    training = args[5]
    return contiguous(i, out, args) if training else out.stride()


OPERATORS = {
    **dict.fromkeys(
        ("rsub", "abs", "sign", "floor", "ceil", "trunc", "round", "clamp", "clamp_min", "clamp_max", "maximum", "minimum",
         "threshold", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "logical_and", "logical_or", "logical_not",
         "logical_xor", "bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor"), Operator(exact=EVERYWHERE),
    ),
    **dict.fromkeys(
        ("log", "log2", "log10", "log1p", "rsqrt", "pow", "reciprocal", "lgamma", "digamma"), Operator(positive=True)
    ),
    "sqrt": Operator(exact=EVERYWHERE, positive=True),
    **dict.fromkeys(
        ("mish_backward", "softshrink_backward", "hardshrink_backward", "_prelu_kernel", "_prelu_kernel_backward", "complex"),
        Operator(broadcast),
    ),
    **{op: Operator(exact=EVERYWHERE, over=in_place(op)) for op in ("relu", "leaky_relu", "neg")},
    **{op: Operator(over=in_place(op)) for op in ("sigmoid", "tanh", "silu", "gelu", "hardswish", "elu")},
    **{op: Operator(over=grad_input(op)) for op in ("sigmoid_backward", "tanh_backward", "silu_backward", "gelu_backward")},
    "add": Operator(exact=EVERYWHERE, over=in_place("add", "Scalar") | over_either("add")),
    "sub": Operator(exact=EVERYWHERE, over=in_place("sub", "Tensor")),
    # `mul_.Scalar` rounds the number to half precision first
    "mul": Operator(exact=EVERYWHERE, over=over_either("mul") | {aten.mul.Scalar: {0: aten.mul_.Tensor}}),
    "div": Operator(exact=EVERYWHERE, over=in_place("div", "Scalar", "Tensor")),
    "where": Operator(exact=EVERYWHERE, over={aten.where.self: {i: _over_where(i) for i in (1, 2)}}),
    "masked_fill": Operator(broadcast, exact=EVERYWHERE, strides=contiguous, over=in_place("masked_fill", "Scalar")),
    "threshold_backward": Operator(
        exact=EVERYWHERE, strides=as_a_sum(1, 0), over=grad_input("threshold_backward"), saved=("signs", "ReLU")
    ),
    "hardtanh": Operator(exact=EVERYWHERE, strides=as_first_if_dense, over=in_place("hardtanh")),
    "hardtanh_backward": Operator(
        broadcast, exact=EVERYWHERE, strides=as_a_sum(0, 1), over=grad_input("hardtanh_backward")
    ),
    "leaky_relu_backward": Operator(
        broadcast, exact=EVERYWHERE, strides=as_a_sum(1, 0), over=grad_input("leaky_relu_backward")
    ),
    "elu_backward": Operator(broadcast, strides=as_a_sum(0, 5), over=grad_input("elu_backward")),
    "hardswish_backward": Operator(broadcast, strides=as_a_sum(0, 1)),
    "hardsigmoid_backward": Operator(broadcast, strides=as_a_sum(0, 1)),
    "softplus_backward": Operator(broadcast, strides=as_a_sum(0, 1)),
    "log_sigmoid_forward": Operator(broadcast, strides=contiguous),
    "log_sigmoid_backward": Operator(broadcast, strides=as_a_sum(0, 2)),
    "rrelu_with_noise_backward": Operator(strides=_rrelu_backward),
    "native_dropout": Operator(strides=_dropout),
    "native_dropout_backward": Operator(exact=EVERYWHERE, strides=as_a_sum(0, 1), saved=("masks", "dropout")),
}  # fmt: skip
