"""Calls of ops outside of autograd that run them as autograd does, in no more memory than their results need.

Each function makes the call of one overload. It stands in the records that need it (`Operator.run`); `rules.runnable` asks it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Corrected = Callable[..., Any]


def _named(call: Corrected, target: Any, how: str) -> Corrected:
    call.__name__ = f"{target._schema.name.split('::')[-1]}_{how}"
    return call


def in_grad_mode(target: Any) -> Corrected:
    """Of a kernel that returns what backward needs only in grad mode. It runs on tensors that require no grad, so that autograd
    records nothing."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            return target(*(a.detach() if isinstance(a, torch.Tensor) else a for a in args), **kwargs)

    return _named(call, target, "in_grad_mode")


def by_shape(target: Any) -> Corrected:
    """Of a kernel that reads an argument for its shape only, where a stand-in without memory is given (`lowering.shape_only`).

    A GPU's kernel would make a contiguous copy of the stand-in; here the result itself, not yet written, takes its place.
    """
    out = target.overloadpacket.grad_input

    def call(gradient: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if any(x.stride()) or x.numel() <= 1:
            return target(gradient, x, *args, **kwargs)
        made = x.new_empty(x.shape)
        return out(gradient, made, *args, **kwargs, grad_input=made)

    return _named(call, target, "by_shape")


def of_dense(target: Any) -> Corrected:
    """Of the backward of an op that reads a gradient as if it lay in memory like the op's input: it gets one that does.

    The loss may give a gradient in other strides than the graph was captured with. Autograd copies it then, but such a copy is
    not in the graph, and the kernel reads memory without regard to strides.
    """

    def call(gradient: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
        layout = last if last is not None and not x.is_contiguous() else torch.contiguous_format
        return target(gradient.contiguous(memory_format=layout), x, *args, **kwargs)

    return _named(call, target, "of_dense")


def fitted(target: Any) -> Corrected:
    """Of a kernel that computes in a larger storage and returns it shrunk: a scalar whose storage holds a whole batch. Such a
    result is copied."""

    def call(*args: Any, **kwargs: Any) -> Any:
        out = target(*args, **kwargs)
        return out.clone() if out.untyped_storage().nbytes() > out.numel() * out.element_size() else out

    return _named(call, target, "fitted")


def of_base_alone(view: Any) -> Callable[[Any], Corrected]:
    """Of an op that copies a tensor and writes into a view of the copy. Its kernel copies the whole storage; here the tensor
    alone is copied. view : the op that makes the view."""

    def corrected(target: Any) -> Corrected:
        def call(base: torch.Tensor, source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if base.untyped_storage().nbytes() == base.numel() * base.element_size() or 0 in base.stride():
                return target(base, source, *args, **kwargs)
            out = torch.empty_strided(base.shape, base.stride(), dtype=base.dtype, device=base.device).copy_(base)
            view(out, *args, **kwargs).copy_(source)
            return out

        return _named(call, target, "fitted")

    return corrected
