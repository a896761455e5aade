"""Cuts of ops that move elements: views, copies, padding, joining, and tensors made of one number."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from operator import mul

from .cut_call import Call, Draft, Rule, alike, broadcast


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
    a, b = (
        call.values.get(name, d) for name, d in (("dim0", 0), ("dim1", -1))
    )  # `t` names none, and may have one dimension
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


RULES: dict[str, Rule] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape"), _view),
    **dict.fromkeys(
        ("detach", "alias", "lift_fresh", "lift_fresh_copy", "_to_copy", "copy", "fill", "expand"), broadcast
    ),
    **dict.fromkeys(("empty", "zeros", "ones", "full", "new_empty", "new_zeros", "new_ones", "new_full"), _made),
    **dict.fromkeys(("empty_like", "zeros_like", "ones_like", "full_like"), broadcast),
    **dict.fromkeys(("as_strided", "empty_strided", "new_empty_strided"), _strided),
    "permute": _permute,
    **dict.fromkeys(("transpose", "t"), _transpose),
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    **dict.fromkeys(("select", "unbind"), _take),
    "select_backward": _select_backward,
    "select_scatter": _select_scatter,
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    **dict.fromkeys(("slice", "slice_backward", "slice_scatter"), _slice),
    "cat": _cat,
    "stack": _stack,
    "repeat": _repeat,
    "constant_pad_nd": _pad,
    **dict.fromkeys(("tril", "triu"), _matrices),
    **dict.fromkeys(("flip", "roll"), _moved),
}
