"""Ops that move elements: views, copies, padding, joining, and tensors made of one number. One record each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from operator import mul
from typing import Any

import torch

from .corrected import of_base_alone
from .cut_call import Call, Draft, Slice, alike, broadcast, shape_of_result
from .record import EVERYWHERE, Operator
from .strides import laid_out_as

aten = torch.ops.aten


def _view(call: Call) -> Iterator[Draft]:
    """At dimensions before which the two shapes have as many elements: so a slice of the one is a slice of the other, as far as
    the number of slices divides both sizes."""
    before, after = call.shape("self"), call.out()
    if "dtype" in call.values:  # the bits under another type
        yield from alike(call, range(len(after) - 1))
        return
    above = list(accumulate(before, mul, initial=1))
    for d, elements in enumerate(accumulate(after[:-1], mul, initial=1)):
        yield from (Draft({"self": i}, (d,)) for i, n in enumerate(before) if above[i] == elements and n > 1)


def _made(call: Call) -> list[Draft]:
    """A tensor whose elements are all made alike; another tensor may tell its type."""
    return [Draft({}, (d,)) for d in range(len(call.out()))]


def _strided(call: Call) -> list[Draft]:
    """Of one element alone, which stands at all places: a tensor that is read for its shape."""
    return [] if any(call["stride"]) else _made(call)


def _permute(call: Call) -> list[Draft]:
    rank = len(call.out())
    return [Draft({"self": d % rank}, (i,)) for i, d in enumerate(call["dims"])]


def _transpose(call: Call) -> list[Draft]:
    rank = len(call.out())
    order = list(range(rank))
    # `t` names none, and may have one dimension
    a, b = (call.values.get(name, d) for name, d in (("dim0", 0), ("dim1", -1)))
    if rank:
        order[a], order[b] = order[b], order[a]
    return [Draft({"self": d}, (i,)) for i, d in enumerate(order)]


def _unsqueeze(call: Call) -> list[Draft]:
    rank = len(call.out())
    new = call["dim"] % rank
    return [Draft({"self": d - (d > new)}, (d,)) for d in range(rank) if d != new]


def _squeeze(call: Call) -> list[Draft]:
    shape = call.shape("self")
    lost = {d for d in call.dims() if shape[d] == 1}
    kept = [d for d in range(len(shape)) if d not in lost]
    return [Draft({"self": d}, (i,)) for i, d in enumerate(kept)]


def _take(call: Call) -> list[Draft]:
    """One dimension goes: of it, one position is taken, or each is a result of its own."""
    (gone,) = call.dims()
    dims = [d for d in range(len(call.shape("self"))) if d != gone]
    return [Draft({"self": d}, (i,) * len(call.results)) for i, d in enumerate(dims)]


def _select_backward(call: Call) -> list[Draft]:
    rank = len(call.out())
    new = call["dim"] % rank
    return [Draft({"grad_output": d - (d > new)}, (d,)) for d in range(rank) if d != new]


def _select_scatter(call: Call) -> list[Draft]:
    (at,) = call.dims()
    return [Draft({"self": d, "src": d - (d > at)}, (d,)) for d in range(len(call.out())) if d != at]


def _split(call: Call) -> list[Draft]:
    (at,) = call.dims()
    return alike(call, [d for d in range(len(call.shape("self"))) if d != at])


def _slice(call: Call) -> list[Draft]:
    """At every dimension but the one that is sliced; at this one too, where all of it is taken."""
    rank = len(call.out())
    sliced = call["dim"] % rank
    length = max(call.out()[sliced], max(shape[sliced] for _, _, shape in call.tensors))
    start, end = call["start"] or 0, call["end"]
    everything = start == 0 and (end is None or end >= length) and call["step"] == 1
    return alike(call, [d for d in range(rank) if d != sliced or everything])


def _cat(call: Call) -> list[Draft]:
    rank = len(call.out())
    at = call["dim"] % rank
    if any(len(shape) != rank for _, _, shape in call.tensors):
        return []  # an empty tensor of one dimension may stand among others
    return [Draft({"tensors": d}, (d,)) for d in range(rank) if d != at]


def _stack(call: Call) -> list[Draft]:
    rank = len(call.out())
    new = call["dim"] % rank
    return [Draft({"tensors": d - (d > new)}, (d,)) for d in range(rank) if d != new]


def _repeat(call: Call) -> list[Draft]:
    """At dimensions that are not repeated, and at those of one element, of which a slice has some."""
    shape, whole = call.shape("self"), call.out()
    cuts = []
    for d, times in enumerate(call["repeats"]):
        own = d - len(whole) + len(shape)
        if times == 1 and own >= 0:
            cuts.append(Draft({"self": own}, (d,)))
        elif own < 0 or shape[own] == 1:
            cuts.append(Draft({}, (d,)))
    return cuts


def _pad(call: Call) -> list[Draft]:
    """At dimensions that are not padded; the pads stand in pairs, those of the last dimension first."""
    rank, pads = len(call.out()), call["pad"]
    padded = {rank - 1 - i // 2 for i, n in enumerate(pads) if n}
    return alike(call, [d for d in range(rank) if d not in padded])


def _matrices(call: Call) -> list[Draft]:
    return alike(call, range(len(call.out()) - 2))


def _moved(call: Call) -> list[Draft]:
    """`flip` and `roll`: at dimensions in which nothing moves."""
    moved = call.dims("dims") if call["dims"] or call.name == "aten::roll" else set()
    return alike(call, [d for d in range(len(call.out())) if d not in moved])


# -- arguments of a slice ----------------------------------------------------------------------------------------------
def _still_lost(part: Slice) -> dict[str, Any]:
    """The dimensions that the whole loses; a slice may have one element where the whole has many, and keeps that dimension."""
    shape = part.call.shape("self")
    return {"dim": sorted(d for d in part.call.dims() if shape[d] == 1)}


def _fewer_repeats(part: Slice) -> dict[str, Any]:
    """Where the input is read whole, it is repeated less often."""
    repeats, d = list(part.call["repeats"]), part.outs[0]
    if isinstance(d, int) and part.ins["self"] is None:
        repeats[d] = part.of(repeats[d])
    return {"repeats": repeats}


def _over_base(x: torch.Tensor, part: torch.Tensor, *where: Any, **kwargs: Any) -> torch.Tensor:
    aten.slice.Tensor(x, *where, **kwargs).copy_(part)
    return x


_SIZE, _SIZES = shape_of_result("size"), shape_of_result("input_sizes")

OPERATORS = {
    "view": Operator(_view, _SIZE),
    "_unsafe_view": Operator(_view, _SIZE, exact=EVERYWHERE),
    "reshape": Operator(_view, shape_of_result("shape"), exact=EVERYWHERE),
    **dict.fromkeys(("detach", "alias", "lift_fresh"), Operator(broadcast, renames=True)),
    **dict.fromkeys(("lift_fresh_copy", "_to_copy", "copy", "fill"), Operator(broadcast, exact=EVERYWHERE)),
    "clone": Operator(exact=EVERYWHERE),
    "expand": Operator(broadcast, _SIZE),
    **dict.fromkeys(("empty", "new_empty"), Operator(_made, _SIZE, unwritten=True)),
    **dict.fromkeys(("empty_strided", "new_empty_strided"), Operator(_strided, _SIZE, unwritten=True)),
    "empty_like": Operator(broadcast, unwritten=True),
    "empty_permuted": Operator(unwritten=True),
    **dict.fromkeys(("zeros", "ones", "full", "new_zeros", "new_ones", "new_full"), Operator(_made, _SIZE, exact=EVERYWHERE)),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like"), Operator(broadcast, exact=EVERYWHERE)),
    "as_strided": Operator(_strided, _SIZE),
    "permute": Operator(_permute),
    "transpose": Operator(_transpose),
    "t": Operator(_transpose),
    "unsqueeze": Operator(_unsqueeze),
    "squeeze": Operator(_squeeze, _still_lost),
    "select": Operator(_take),
    "unbind": Operator(_take),
    "select_backward": Operator(_select_backward, _SIZES, exact=EVERYWHERE),
    "select_scatter": Operator(_select_scatter, exact=EVERYWHERE, run=of_base_alone(aten.select.int)),
    "split": Operator(_split),
    "split_with_sizes": Operator(_split),
    "slice": Operator(_slice),
    "slice_backward": Operator(_slice, _SIZES, exact=EVERYWHERE),
    "slice_scatter": Operator(
        _slice, exact=EVERYWHERE, run=of_base_alone(aten.slice.Tensor),
        over={aten.slice_scatter.default: {0: _over_base}},
    ),
    "diagonal_scatter": Operator(run=of_base_alone(aten.diagonal.default)),
    "cat": Operator(_cat, exact=EVERYWHERE),
    "stack": Operator(_stack, exact=EVERYWHERE),
    "repeat": Operator(_repeat, _fewer_repeats, exact=EVERYWHERE),
    "constant_pad_nd": Operator(_pad, exact=EVERYWHERE),
    "tril": Operator(_matrices, exact=EVERYWHERE),
    "triu": Operator(_matrices, exact=EVERYWHERE),
    "flip": Operator(_moved, exact=EVERYWHERE),
    "roll": Operator(_moved, exact=EVERYWHERE, strides=laid_out_as(0)),
    "channel_shuffle": Operator(strides=laid_out_as(0)),
}  # fmt: skip
