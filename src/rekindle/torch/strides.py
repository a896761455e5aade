"""Fake tensors laid out as the CPU's kernels lay out some results, where torch's shape rules say otherwise.

A batch norm over transposed inputs, say, gives a contiguous result. Captured as torch's rules have it, a view of that would
stand where eager copies.

It touches PyTorch's private surface, as `capture` does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._prims_common import make_channels_last_strides_for, make_contiguous_strides_for, suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_unflatten

aten = torch.ops.aten

# Ops all of whose results are contiguous.
_CONTIGUOUS = {
    aten.native_layer_norm_backward.default,
    aten._log_softmax_backward_data.default,
    aten.log_sigmoid_forward.default,
    aten.rrelu_with_noise_backward.default,
    aten.glu_backward.default,
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.huber_loss_backward.default,
}

# Op -> the argument after which its first result is laid out: channels last, or contiguous.
_AFTER = {
    aten.native_batch_norm.default: 0,
    aten._native_batch_norm_legit.default: 0,
    aten._native_batch_norm_legit.no_stats: 0,
    aten._native_batch_norm_legit_functional.default: 0,
    aten._native_batch_norm_legit_no_training.default: 0,
    aten.native_batch_norm_backward.default: 1,
    aten.reflection_pad2d.default: 0,  # before torch 2.12
    aten.reflection_pad2d_backward.default: 1,
    aten.roll.default: 0,
    aten.channel_shuffle.default: 0,
}

# Element-wise op -> the two arguments after which its result is laid out, as that of any op of two tensors is.
_AS_A_SUM = {
    aten.hardswish_backward.default: (0, 1),
    aten.hardsigmoid_backward.default: (0, 1),
    aten.hardtanh_backward.default: (0, 1),
    aten.elu_backward.default: (0, 5),
    aten.softplus_backward.default: (0, 1),
    aten.log_sigmoid_backward.default: (0, 2),
}

_OPS = _CONTIGUOUS | _AFTER.keys() | _AS_A_SUM.keys()


@contextlib.contextmanager
def eager_strides(mode: FakeTensorMode) -> Iterator[None]:
    """Meanwhile these ops give fake tensors of `mode` with the strides of the CPU's results."""
    private: Any = mode
    cached, computed = private._cached_dispatch_impl, private._dispatch_impl

    def compute(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        out = computed(func, types, args, kwargs)
        return _laid_out(func, args, out) if func in _OPS else out

    def look_up(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        # All modes of a process share the cache: what others left there has other strides, and they want theirs.
        return (compute if func in _OPS else cached)(func, types, args, kwargs)

    private._dispatch_impl, private._cached_dispatch_impl = compute, look_up
    try:
        yield
    finally:
        del private._dispatch_impl, private._cached_dispatch_impl


def _laid_out(func: Any, args: Any, out: Any) -> Any:
    if func is aten.rrelu_with_noise_backward.default and not args[5]:  # in evaluation it is another kernel
        return out
    results, spec = tree_flatten(out)
    for i, t in enumerate(results):
        if isinstance(t, FakeTensor) and t.device.type == "cpu" and (i == 0 or func in _CONTIGUOUS):
            strides = _strides(func, t, args)
            results[i] = t if t.stride() == strides else t.new_empty_strided(t.shape, strides)
    return tree_unflatten(results, spec)


def _strides(func: Any, out: torch.Tensor, args: Any) -> tuple[int, ...]:
    if func in _AS_A_SUM:
        one, two = _AS_A_SUM[func]
        return (args[one] + args[two]).stride()
    last = func in _AFTER and _channels_last(args[_AFTER[func]])
    return tuple(make_channels_last_strides_for(out.shape) if last else make_contiguous_strides_for(out.shape))


def _channels_last(t: torch.Tensor) -> bool:
    """As kernels see it: where dimensions of size 1 leave both open, by what is contiguous."""
    if suggest_memory_format(t) != torch.contiguous_format:
        return True
    return t.dim() == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last)
