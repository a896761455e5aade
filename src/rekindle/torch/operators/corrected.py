"""Calls of ops in other ways than their own, which records name, with the same bits.

Some calls outside of autograd run ops as autograd does, in no more memory than their results need (`Operator.run`;
`rules.runnable` asks it). Others write their result over one of their arguments. Records have them by overload and position of
the argument. The `out=` or in-place form gives the same bits when the output lies over that argument: element-wise kernels read
each element before they write it, and softmaxes read a row to its end before they write it. `out=` forms that compute elsewhere
and copy are not among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .strides import result_strides

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


aten = torch.ops.aten
Overwrites = dict[Any, dict[int, Callable[..., Any]]]  # op -> {position of an argument: call that writes over it}
FITS: dict[Callable[..., Any], Callable[..., bool]] = {}  # call that overwrites only sometimes -> when


def where_it_fits(fits: Callable[..., bool], over: Callable[..., Any], op: Callable[..., Any]) -> Callable[..., Any]:
    """A call that writes over an argument if `fits` says of the call's arguments that it can, and else makes a new result."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return over(*args, **kwargs) if fits(*args) else op(*args, **kwargs)

    FITS[call] = fits
    return call


def in_place(name: str, *overloads: str) -> Overwrites:
    """Each named overload of an op, replaced by the overload of the same name of its in-place form (`relu` by `relu_`)."""
    op, inplace = getattr(aten, name), getattr(aten, f"{name}_")
    return {getattr(op, x): {0: getattr(inplace, x)} for x in overloads or ("default",)}


def grad_input(name: str) -> Overwrites:
    """A backward op that writes the gradient of its input over its first argument."""
    op = getattr(aten, name)
    out = op.grad_input

    def call(*args: Any, **kwargs: Any) -> Any:
        return out(*args, **kwargs, grad_input=args[0])

    return {op.default: {0: call}}


def in_place_call(target: Any) -> Callable[..., Any] | None:
    """The in-place form of an op (`lerp_` of `lerp`), whatever its result is laid out like; None: it has none."""
    if getattr(target, "namespace", "") != "aten":
        return None
    packet = getattr(aten, f"{target._schema.name.removeprefix('aten::')}_", None)
    return getattr(packet, target._overloadname, None)


def over_either(name: str) -> Overwrites:
    """An op of two tensors that writes over the first, or the second if strides fit."""
    op, inplace = getattr(aten, name), getattr(aten, f"{name}_")
    out = op.out
    second = where_it_fits(keeps_strides(1), lambda a, b, **k: out(a, b, **k, out=b), op.Tensor)
    return {op.Tensor: {0: inplace.Tensor, 1: second}}


def keeps_strides(position: int) -> Callable[..., bool]:
    """Whether an element-wise op of tensors gives its result the strides of the argument at this position. A gradient from the
    loss may have other strides than in the graph, and a part of a larger tensor has gaps. Arguments of equal strides do not
    settle it: all may have gaps, or strides of their own in a dimension of size 1, by which later ops choose their kernels."""

    def fits(*args: torch.Tensor) -> bool:
        over = args[position]
        return result_strides(over.shape, args) == over.stride()

    return fits


def over_rows(name: str, result: str = "out") -> Overwrites:
    """A softmax or its backward; its kernel gives a contiguous result, and writes wrong numbers over an argument that is not.

    result : the name of the argument that is given the memory.
    """
    op = getattr(aten, name)
    out = op.out

    def over(x: Any, *args: Any, **kwargs: Any) -> Any:
        return out(x, *args, **kwargs, **{result: x})

    return {op.default: {0: where_it_fits(lambda x, *_: x.is_contiguous(), over, op.default)}}
