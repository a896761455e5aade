"""Fake tensors laid out as the CPU's kernels lay out their results, where torch's shape rules say otherwise.

A batch norm over transposed inputs, say, gives a contiguous result. Captured as torch's rules have it, a view of that would
stand where eager copies.

It touches PyTorch's private surface, as `capture` does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import make_channels_last_strides_for, make_contiguous_strides_for, suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, _BypassDispatchCache
from torch.utils._pytree import tree_flatten, tree_unflatten

aten = torch.ops.aten

# Op -> the argument after whose channels the first result is laid out (last or not); -1: every result is contiguous.
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
    aten.native_layer_norm_backward.default: -1,
    aten._log_softmax_backward_data.default: -1,
    aten.log_sigmoid_forward.default: -1,
    aten.rrelu_with_noise_backward.default: -1,
    aten.glu_backward.default: -1,
    aten.mse_loss_backward.default: -1,
    aten.smooth_l1_loss_backward.default: -1,
    aten.huber_loss_backward.default: -1,
}

# Element-wise ops laid out after their first two arguments as any op of two tensors is.
_AS_A_SUM = {
    aten.hardswish_backward.default,
    aten.hardsigmoid_backward.default,
    aten.hardtanh_backward.default,
    aten.elu_backward.default,
    aten.softplus_backward.default,
}


class EagerFakes(FakeTensorMode):
    """Fake tensors with the strides of eager's results on the CPU."""

    def _validate_cache_key(self, func: Any, args: Any, kwargs: Any) -> None:
        if func in _AFTER or func in _AS_A_SUM:  # others than ours may ask the cache too
            raise _BypassDispatchCache("laid out as in eager")
        super()._validate_cache_key(func, args, kwargs)

    def _dispatch_impl(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        out = super()._dispatch_impl(func, types, args, kwargs)
        if func not in _AFTER and func not in _AS_A_SUM:
            return out
        results, spec = tree_flatten(out)
        for i, t in enumerate(results):
            if isinstance(t, FakeTensor) and t.device.type == "cpu" and (i == 0 or _AFTER.get(func) == -1):
                strides = _strides(func, t, args)
                results[i] = t if t.stride() == strides else t.new_empty_strided(t.shape, strides)
        return tree_unflatten(results, spec)


def _strides(func: Any, out: torch.Tensor, args: Any) -> tuple[int, ...]:
    if func in _AS_A_SUM:
        return (args[0] + args[1]).stride()
    at = _AFTER[func]
    last = at >= 0 and suggest_memory_format(args[at]) != torch.contiguous_format
    return tuple(make_channels_last_strides_for(out.shape) if last else make_contiguous_strides_for(out.shape))
