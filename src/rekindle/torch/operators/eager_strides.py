"""Strides of fake tensors as the CPU's kernels return them, for ops whose shape rules return other strides.

For example, a batch norm of transposed inputs returns a contiguous result. With the strides of torch's shape rule, the graph
would hold a view of it where eager makes a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..private import (
    FakeTensor,
    FakeTensorMode,
    make_channels_last_strides_for,
    make_contiguous_strides_for,
    suggest_memory_format,
    tree_flatten,
    tree_unflatten,
)
from .cut_rules import OPERATORS
from .record import overloads
from .tensor_iterator import result_strides

aten = torch.ops.aten

# Ops whose results are all contiguous.
_CONTIGUOUS = {
    *(op for name, facts in OPERATORS.items() if facts.all_contiguous for op in overloads(name)),
    aten._log_softmax_backward_data.default,
    aten.log_sigmoid_forward.default,
    aten.rrelu_with_noise_backward.default,
    aten.glu_backward.default,
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.huber_loss_backward.default,
    aten.masked_fill.Scalar,
    aten.masked_fill.Tensor,
}

_NORMS = {
    op: facts.laid_out_as
    for name, facts in OPERATORS.items()
    if facts.laid_out_as is not None
    for op in overloads(name)
}

# Op -> the argument whose layout its first result has: channels last, or contiguous.
_AFTER = {
    **_NORMS,
    aten.reflection_pad2d.default: 0,  # before torch 2.12
    aten.reflection_pad2d_backward.default: 1,
    aten.roll.default: 0,
    aten.channel_shuffle.default: 0,
}

# Element-wise op -> the two arguments that decide the strides of its result, as for any op of two tensors.
_AS_A_SUM = {
    aten.hardswish_backward.default: (0, 1),
    aten.hardsigmoid_backward.default: (0, 1),
    aten.hardtanh_backward.default: (0, 1),
    aten.elu_backward.default: (0, 5),
    aten.softplus_backward.default: (0, 1),
    aten.log_sigmoid_backward.default: (0, 2),
    aten.leaky_relu_backward.default: (1, 0),
    aten.threshold_backward.default: (1, 0),
    aten.native_dropout_backward.default: (0, 1),
}

# Ops whose results have the strides of their first argument if it has no gaps.
_ALIKE = {aten.hardtanh.default, aten.native_dropout.default}

# Op -> the result that is contiguous if dimensions of size 1 leave its strides open: a gradient of weights, say.
_CONTIGUOUS_IF_OPEN = {aten._log_softmax.default: 0, aten.convolution_backward.default: 1}

# Ops tagged as element-wise that keep the strides of their argument.
_KEEPS = {aten.clone.default, aten._to_copy.default}
_NUMBER = torch.empty(())  # a Python number, as a kernel sees it

_OPS = _CONTIGUOUS | _AFTER.keys() | _AS_A_SUM.keys() | _ALIKE | _CONTIGUOUS_IF_OPEN.keys()


@contextlib.contextmanager
def eager_strides(mode: FakeTensorMode) -> Iterator[None]:
    """Inside, the ops listed in this file return fake tensors of `mode` with the strides of the CPU's kernels."""
    private: Any = mode
    cached, computed = private._cached_dispatch_impl, private._dispatch_impl
    before = {k: x for k, x in vars(mode).items() if k in ("_cached_dispatch_impl", "_dispatch_impl")}

    def compute(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        out = computed(func, types, args, kwargs)
        return _laid_out(func, args, out) if func in _OPS else out

    def look_up(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        # All modes of the process share the cache, and the other modes need the strides of torch's rules in it.
        out = (compute if func in _OPS else cached)(func, types, args, kwargs)
        return _settled(func, args, out) if isinstance(out, FakeTensor) and 1 in out.shape else out

    private._dispatch_impl, private._cached_dispatch_impl = compute, look_up
    try:
        yield
    finally:
        del private._dispatch_impl, private._cached_dispatch_impl
        vars(mode).update(before)  # of a context around this one


def _laid_out(func: Any, args: Any, out: Any) -> Any:
    if func is aten.rrelu_with_noise_backward.default and not args[5]:  # evaluation uses another kernel
        return out
    results, spec = tree_flatten(out)
    for i, t in enumerate(results):
        if isinstance(t, FakeTensor) and t.device.type == "cpu":
            strides = _strides(func, i, t, args)
            results[i] = t if t.stride() == strides else t.new_empty_strided(t.shape, strides)
    return tree_unflatten(results, spec)


def _strides(func: Any, i: int, out: torch.Tensor, args: Any) -> tuple[int, ...]:
    """Strides of result i of an op in this file's tables."""
    if func is aten.native_dropout.default and i == 0:
        return result_strides(out.shape, [args[0]])  # its mask, the second result, has the strides of the input
    if func in _ALIKE:
        dense = aten.is_non_overlapping_and_dense(args[0]) and args[0].shape == out.shape
        return args[0].stride() if dense else out.stride()
    if func in _CONTIGUOUS_IF_OPEN:
        settled = i == _CONTIGUOUS_IF_OPEN[func] and out.is_contiguous()
        return tuple(make_contiguous_strides_for(out.shape)) if settled else out.stride()
    if func not in _CONTIGUOUS and i > 0:
        return out.stride()
    if func in _AS_A_SUM:
        one, two = _AS_A_SUM[func]
        return result_strides(out.shape, [args[one], args[two]])
    last = func in _AFTER and _channels_last(func, args)
    return tuple(make_channels_last_strides_for(out.shape) if last else make_contiguous_strides_for(out.shape))


def _settled(func: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
    """The result of an element-wise op with the kernel's strides, also in dimensions of size 1."""
    if torch.Tag.pointwise not in func.tags or func in _KEEPS or func in _OPS or _gives_view(func):
        return out
    operands = [x for a in args for x in (a if isinstance(a, list | tuple) else [a]) if isinstance(x, torch.Tensor)]
    by_schema = zip(args, func._schema.arguments, strict=False)
    if func._overloadname.startswith("Scalar") or any(_stands_for_tensor(a, x) for a, x in by_schema):
        operands.append(_NUMBER)
    strides = result_strides(out.shape, operands)
    return out if out.stride() == strides else out.new_empty_strided(out.shape, strides)


def _stands_for_tensor(given: Any, argument: Any) -> bool:
    return isinstance(given, int | float | complex) and "Tensor" in str(argument.type)


def _gives_view(func: Any) -> bool:
    return any(r.alias_info is not None for r in func._schema.returns)


def _channels_last(func: Any, args: Any) -> bool:
    """Whether the op's kernel treats its deciding argument as channels last."""
    t = args[_AFTER[func]]
    proposed = suggest_memory_format(t) != torch.contiguous_format
    if func in _NORMS and _has_no_gaps(t):
        other = args[0]  # the gradient, in backward
        alike = _has_no_gaps(other) and proposed == (suggest_memory_format(other) != torch.contiguous_format)
        return not t.is_contiguous() if alike else proposed
    return proposed or t.dim() == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last)


def _has_no_gaps(t: torch.Tensor) -> bool:
    return t.is_contiguous() or t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last)
