"""Ops that read or write where an index says: one record each."""

from __future__ import annotations

import torch

from .cut_call import Call, Draft, Shape, aligned
from .losses import below
from .record import EVERYWHERE, Given, Operator, Valid


# -- cuts --------------------------------------------------------------------------------------------------------------
def _gather(call: Call) -> list[Draft]:
    """At the dimension along which it gathers, each slice reads all; the index may leave out ends of other dimensions."""
    (along,) = call.dims()
    shape, index = call.shape("self"), call.shape("index")
    same = [d for d in range(len(index)) if d != along and shape[d] == index[d]]
    return [Draft({"index": along}, (along,)), *(Draft({"self": d, "index": d}, (d,)) for d in same)]


def _scatter(call: Call) -> list[Draft]:
    (along,) = call.dims()
    shapes = [shape for _, _, shape in call.tensors]
    same = [d for d in range(len(call.out())) if d != along and len({shape[d] for shape in shapes}) == 1]
    return [Draft({"self": d, "index": d, "src": d}, (d,)) for d in same]


def _index_select(call: Call) -> list[Draft]:
    (along,) = call.dims()
    rank = len(call.out())
    return [Draft({"index": 0}, (along,)), *(Draft({"self": d}, (d,)) for d in range(rank) if d != along)]


def _indexed(call: Call) -> tuple[Shape, int, dict[int, int]] | None:
    """(shape that the indices have together, where it stands in the result, dimension of `self` -> dimension of the result, for
    those without an index); None for masks, whose results have sizes of their own.

    The shape stands where the indices stood, or first where a dimension lies between them.
    """
    at = [i for i, x in enumerate(call["indices"]) if x is not None]
    nodes = [call["indices"][i] for i in at]
    if not nodes or any(n.meta["val"].dtype in (torch.bool, torch.uint8) for n in nodes):
        return None
    shape = torch.broadcast_shapes(*(tuple(n.meta["val"].shape) for n in nodes))
    begin = at[0] if at[-1] - at[0] + 1 == len(at) else 0
    free = [d for d in range(len(call.shape("self"))) if d not in at]
    return tuple(shape), begin, {d: i if i < begin else i + len(shape) for i, d in enumerate(free)}


def _index(call: Call) -> list[Draft]:
    """By the dimensions of the indices, or by those without an index."""
    indexed = _indexed(call)
    if indexed is None:
        return []
    shape, begin, free = indexed
    position = {i: s for name, i, s in call.tensors if name == "indices"}
    members = range(len(call["indices"]))
    by_index = [
        Draft({"indices": [aligned(position[i], shape, d) if i in position else None for i in members]}, (begin + d,))
        for d in range(len(shape))
    ]
    return by_index + [Draft({"self": d}, (out,)) for d, out in free.items()]


def _index_put(call: Call) -> list[Draft]:
    """By the dimensions without an index; the values have the shape that indexing would give, or repeat one row."""
    indexed = _indexed(call)
    if indexed is None:
        return []
    shape, begin, free = indexed
    sizes = {out: call.shape("self")[d] for d, out in free.items()} | {begin + i: n for i, n in enumerate(shape)}
    whole = tuple(sizes[i] for i in range(len(sizes)))
    values = call.shape("values")
    return [Draft({"self": d, "values": aligned(values, whole, out)}, (d,)) for d, out in free.items()]


# -- valid arguments ---------------------------------------------------------------------------------------------------
def _below_size(x: Given) -> Valid:
    return {("index", 0): below(x["self"].shape[x["dim"]] if x["self"].dim() else 1, x["index"])}


def _below_sizes(x: Given) -> Valid:
    return {
        ("indices", i): below(x["self"].shape[i], t) for i, t in enumerate(x["indices"])
        if t is not None and t.dtype not in (torch.bool, torch.uint8)
    }  # fmt: skip


OPERATORS = {
    "gather": Operator(_gather, exact=EVERYWHERE, sample=_below_size),
    "scatter": Operator(_scatter, sample=_below_size),
    "scatter_add": Operator(_scatter, sample=_below_size),
    "index_select": Operator(_index_select, exact=EVERYWHERE, sample=_below_size),
    "index": Operator(_index, exact=EVERYWHERE, sample=_below_sizes),
    "index_put": Operator(_index_put, sample=_below_sizes),
}
