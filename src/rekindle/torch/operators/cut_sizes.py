"""The call of one slice: arguments that name sizes of the whole are those of the slice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .cut_call import Call, Dim

aten = torch.ops.aten


@dataclass(frozen=True)
class Slice:
    """One slice of an op's call: units `begin` to `end` of a whole of `size` units.

    ins : argument -> the dimension at which it is cut. outs : as in `Cut`.
    """

    call: Call
    ins: Mapping[str, Dim]
    outs: tuple[int | str | None, ...]
    begin: int
    end: int
    size: int

    def of(self, n: int) -> int:
        """The slice's share of `n` elements, a multiple of `size`."""
        return n // self.size * (self.end - self.begin)


Change = Callable[[Slice], dict[str, Any]]
CHANGES: dict[str, Change] = {}  # name of an op -> the function that gives its changed arguments


def adapted(part: Slice, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(target, args, kwargs) of a slice. args, kwargs : of the whole, with the tensors of the slice."""
    target: Any = part.call.node.target
    change = CHANGES.get(part.call.name)
    if change is None:
        return target, args, kwargs
    if part.call.name == "aten::squeeze":
        target = aten.squeeze.dims
    places = {a.name: i for i, a in enumerate(target._schema.arguments)}
    new = list(args)
    for argument, value in change(part).items():
        if argument in kwargs:
            kwargs = {**kwargs, argument: value}
        else:
            new[places[argument] : places[argument] + 1] = [value]
    return target, tuple(new), kwargs


def _shape_of_result(argument: str) -> Change:
    """The argument holds the shape of the op's only result."""

    def change(part: Slice) -> dict[str, Any]:
        shape, d = list(part.call.out()), part.outs[0]
        if isinstance(d, int):
            shape[d] = part.of(shape[d])
        return {argument: shape} if argument in part.call.values else {}  # `view.dtype` names none

    return change


_SHAPES = {
    "size": (
        "view", "_unsafe_view", "expand", "as_strided", "empty", "empty_strided", "zeros", "ones", "full", "new_empty",
        "new_empty_strided", "new_zeros", "new_ones", "new_full",
    ),
    "shape": ("reshape",),
    "input_sizes": ("select_backward", "slice_backward"),
    "input_size": (
        "upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward",
        "_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d_backward",
        "_upsample_nearest_exact3d_backward", "upsample_linear1d_backward", "upsample_bilinear2d_backward",
        "upsample_bicubic2d_backward", "upsample_trilinear3d_backward", "_upsample_bilinear2d_aa_backward",
        "_upsample_bicubic2d_aa_backward",
    ),
}  # fmt: skip


def _squeeze(part: Slice) -> dict[str, Any]:
    """The dimensions that the whole loses; a slice may have one element where the whole has many, and keeps that dimension."""
    shape = part.call.shape("self")
    return {"dim": sorted(d for d in part.call.dims() if shape[d] == 1)}


def _repeat(part: Slice) -> dict[str, Any]:
    """Where the input is read whole, it is repeated less often."""
    repeats, d = list(part.call["repeats"]), part.outs[0]
    if isinstance(d, int) and part.ins["self"] is None:
        repeats[d] = part.of(repeats[d])
    return {"repeats": repeats}


def _convolution(part: Slice) -> dict[str, Any]:
    """By channel, a grouped convolution has a share of the groups."""
    by_channel = part.ins["input"] == 1
    return {"groups": part.of(part.call["groups"])} if by_channel and part.call["groups"] > 1 else {}


def _convolution_backward(part: Slice) -> dict[str, Any]:
    """The same, and by output channel a share of the bias."""
    if part.ins["grad_output"] != 1:
        return {}
    groups, biases = part.call["groups"], part.call["bias_sizes"]
    changed = {"groups": part.of(groups)} if groups > 1 else {}
    return changed if biases is None else {**changed, "bias_sizes": [part.of(n) for n in biases]}


CHANGES |= {f"aten::{op}": _shape_of_result(argument) for argument, ops in _SHAPES.items() for op in ops}
CHANGES |= {
    "aten::squeeze": _squeeze,
    "aten::repeat": _repeat,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
}
