"""Cutting ops into slices: along which dimension an op may be cut, how its tensors are cut then, and the call of one slice.

A cut says nothing about bits: a slice may be computed by another kernel than the whole.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import gcd
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from ..operators.cut_call import SUM, Call, Cut, Draft, Shape, Slice, holds_tensors, span, tensor_arguments
from ..operators.node_tensors import is_member
from ..operators.table import record_of, rule_of
from ..private import OpOverload

__all__ = ["SUM", "Cut", "cuts_of", "sliced_call", "span", "tensor_arguments"]


def cuts_of(node: fx.Node) -> list[Cut]:
    """The ways to cut an op; [] where the op is not known, or no dimension can be cut.

    node : its `meta["val"]`, and its arguments', give the shapes; fake tensors do. A node that takes a member of a tuple is cut
        as that member is.
    """
    if is_member(node):
        shape = tuple(node.meta["val"].shape) if isinstance(node.meta.get("val"), torch.Tensor) else ()
        return [Cut((d,), (d,), n) for d, n in enumerate(shape) if n > 1]
    rule = rule_of(node.target)
    # Rules cannot read nodes that return numbers.
    if not isinstance(node.target, OpOverload) or rule is None or not all(map(holds_tensors, node.all_input_nodes)):
        return []
    call = Call(node)
    cuts = [_cut(call, draft) for draft in rule(call)]
    return list(dict.fromkeys(c for c in cuts if c.units > 1))


def sliced_call(
    node: fx.Node, cut: Cut, pieces: Sequence[Any], begin: int, end: int, size: int
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(target, args, kwargs) of the call that computes one slice.

    The whole is `size` units, and the slice is units `begin` to `end`: of a dimension of `n` elements, `span(n, …)` of them.
    Arguments that name sizes are those of the slice.

    cut : one of `cuts_of(node)`.
    pieces : the slices of `tensor_arguments(node)`, nodes or tensors; whole where the cut says so.

    Raises
    ------
    ValueError : the op cannot be cut into `size` equal parts, or no such slice exists.
    """
    if cut.units % size or not 0 <= begin < end <= size or len(pieces) != len(cut.ins):
        raise ValueError(
            f"{node.target}: no slice [{begin}, {end}) of {size} units, cut {cut}, of {len(pieces)} pieces"
        )
    rest = iter(pieces)
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: next(rest) if holds_tensors(n) else n)
    if node.target is operator.getitem:
        return node.target, tuple(args), dict(kwargs)
    call = Call(node)
    ins = {name: dim for (name, _, _), dim in zip(call.tensors, cut.ins, strict=True)}
    return _adapted(Slice(call, ins, cut.outs, begin, end, size), tuple(args), dict(kwargs))


def _adapted(part: Slice, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(target, args, kwargs) of a slice. args, kwargs : of the whole, with the tensors of the slice."""
    target: Any = part.call.node.target
    change = record_of(part.call.name).change
    if change is None:
        return target, args, kwargs
    if part.call.name == "aten::squeeze":
        target = torch.ops.aten.squeeze.dims
    places = {a.name: i for i, a in enumerate(target._schema.arguments)}
    new = list(args)
    for argument, value in change(part).items():
        if argument in kwargs:
            kwargs = {**kwargs, argument: value}
        else:
            new[places[argument] : places[argument] + 1] = [value]
    return target, tuple(new), kwargs


def _cut(call: Call, draft: Draft) -> Cut:
    """The cut that a rule names; dimensions of results that are no tensors, or empty, are left out."""
    ins: list[int | None] = []
    units = draft.most
    for name, i, shape in call.tensors:
        value = draft.ins.get(name)
        dim = value if value is None or isinstance(value, int) else value[i]
        ins.append(dim)
        units = _common(units, shape, dim)
    outs = [None if t is None or not t.numel() else d for t, d in zip(call.results, draft.outs, strict=True)]
    for t, d in zip(call.results, outs, strict=True):
        if t is not None and isinstance(d, int):
            units = _common(units, tuple(t.shape), d)
    return Cut(tuple(ins), tuple(outs), units)


def _common(units: int, shape: Shape, dim: int | None) -> int:
    return units if dim is None else gcd(units, shape[dim])
