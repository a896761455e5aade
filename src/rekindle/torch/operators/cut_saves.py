"""Cuts of the operators of this package: bits and offsets that are saved for backward, and the ops that read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .cut_call import Call, Draft, Rule, alike
from .cut_sizes import Change, Slice
from .memory_order import strides_of_slice


def _bits(call: Call) -> list[Draft]:
    """By the dimensions that bits have beside the bytes of a row: two, one, or none."""
    return alike(call, range(len(call.shape("bits") or call.out()) - 1))


def _planes(call: Call) -> list[Draft]:
    """By batch and channel."""
    return alike(call, range(len(call.out()) - 2))


def _shape(part: Slice, whole: Sequence[int]) -> list[int]:
    """The slice's shape of a tensor that is cut as the result is."""
    return [part.of(n) if d == part.outs[0] else n for d, n in enumerate(whole)]


def _strides(part: Slice) -> dict[str, Any]:
    """The strides of the tensor that was packed, or of the result of a pool, as a slice of it has them that is made anew."""
    whole = part.call.out()
    return {"strides": list(strides_of_slice(whole, part.call["strides"], _shape(part, whole)))}


def _size(argument: str) -> Change:
    """An argument holds the shape of a tensor that is cut as the result is."""
    return lambda part: {argument: _shape(part, part.call[argument])}


def _both(argument: str) -> Change:
    return lambda part: _size(argument)(part) | _strides(part)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("sign_bits", "pack_mask", "unpack_mask", "zero_by_bits", "dropout_backward_by_bits"), _bits),
    **dict.fromkeys(("pool_offsets", "max_pool2d_backward_by_offsets"), _planes),
}
CHANGES: dict[str, Change] = {
    "unpack_mask": _both("shape"),
    "zero_by_bits": _strides,
    "dropout_backward_by_bits": _strides,
    "pool_offsets": _size("size"),
    "max_pool2d_backward_by_offsets": _both("size"),
}
