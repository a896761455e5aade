"""Calls of ops that write their result over one of their arguments, with the same bits.

Records have them by overload and position of the argument. The `out=` or in-place form gives the same bits when the output lies
over that argument: element-wise kernels read each element before they write it, and softmaxes read a row to its end before they
write it. `out=` forms that compute elsewhere and copy are not among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .strides import result_strides

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
