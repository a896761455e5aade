"""Operators that save one bit per element for backward: the signs that a ReLU needs, and the masks of dropouts.

Backward gives the same bits as with the whole tensor. Bits of two or three dimensions hold rows that are packed each by itself,
and can be cut along the other dimensions. Bits of one dimension follow the order in which the elements lie in memory, so every
reader is given the strides of the tensor that was packed (`strides_of_packed`); a tensor with gaps is packed so as a contiguous
copy. `BitLayout` and `pieces.Eighths` say which bit stands for which element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..private import make_contiguous_strides_for
from .corrected import where_it_fits
from .cut_call import Call, Draft, Slice, alike
from .memory_order import dropout_strides, element_wise_strides, strides_of_packed, strides_of_slice
from .pieces import Eighths, Piece, most_bytes, packed_bytes, tensor_bytes
from .record import EVERYWHERE, Operator, OwnOp, define

Ints = tuple[int, ...]


# A shorter row is not packed by itself: kernels would run over few bytes at a time. On one CPU thread, packing rows of 196
# elements took 11 times as long as packing all in one, rows of 784 elements 3.5 times, rows of 3,136 elements 2 times.
ROW_LEAST_ELEMENTS = 256


@dataclass(frozen=True)
class BitLayout:
    """How a tensor is packed.

    leading : how many dimensions count the rows: 2, 1, or 0: all elements are in one row.
    order : strides of the dimensions of a row; contiguous ones where there are leading dimensions.
    """

    leading: int
    order: Ints

    @staticmethod
    def to_pack(t: Tensor) -> BitLayout:
        """The layout in which a tensor is packed: rows, if they are long enough and each is contiguous. It does not depend on
        the sizes and strides of the leading dimensions: those of a slice may be others, its bits are a slice of the bits."""
        return _to_pack(tuple(t.shape), tuple(t.stride()), ROW_LEAST_ELEMENTS)

    @staticmethod
    def of(bits: Tensor, shape: Sequence[int], strides: Sequence[int]) -> BitLayout:
        """The layout in which `bits` were packed. shape, strides : of the tensor that was packed."""
        return _layout(tuple(shape), tuple(strides), bits.dim() - 1)

    def bits(self, shape: Sequence[int]) -> Ints:
        """The shape of the bits of a tensor of this shape."""
        return (*shape[: self.leading], packed_bytes(prod(shape[self.leading :])))

    def fits(self, shape: Sequence[int], strides: Sequence[int]) -> bool:
        """Whether the rows of a tensor lie in this order, each without gaps."""
        row = zip(shape[self.leading :], strides[self.leading :], self.order, strict=True)
        return all(n == 1 or a == b for n, a, b in row) or 0 in shape

    def counts(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """(planes, rows of a plane, elements of a row) of a tensor; of one row, (1, 1, all elements)."""
        planes, rows = ((1, 1) + tuple(shape[: self.leading]))[-2:]
        return planes, rows, prod(shape[self.leading :])

    def rows(self, t: Tensor) -> Tensor:
        """A view of a tensor that `fits`, or of its bits: [planes, rows, elements or bytes of a row]."""
        steps = ((1, 1) + t.stride()[: self.leading])[-2:]
        return t.as_strided(self.counts(t.shape), (*steps, 1))


@lru_cache(4096)
def _to_pack(shape: Ints, strides: Ints, least: int) -> BitLayout:
    for leading in (2, 1):
        if len(shape) > leading and 0 not in shape and prod(shape[leading:]) >= least:
            layout = _layout(shape, strides, leading)
            if layout.fits(shape, strides):
                return layout
    return _layout(shape, strides, 0)


@lru_cache(4096)
def _layout(shape: Ints, strides: Ints, leading: int) -> BitLayout:
    order = make_contiguous_strides_for(shape[leading:]) if leading else strides_of_packed(shape, strides)
    return BitLayout(leading, tuple(order))


aten = torch.ops.aten
_SCALAR_BYTES = 32  # of the tensors without dimensions that a kernel makes for numbers, or a little more


# -- packing -----------------------------------------------------------------------------------------------------------
def sign_bits(y: Tensor) -> Tensor:
    """One bit for each element of y, set where y <= 0, as `aten.threshold_backward(g, y, 0)` zeroes.

    Returns uint8[A, B, ceil(n / 8)] for y of shape [A, B, ...] with n elements behind each A and B, uint8[A, ceil(n / 8)] where
    those are few or y has two dimensions, or uint8[ceil(n / 8)] of all n elements, where rows are short or not contiguous.
    """
    layout, out = BitLayout.to_pack(y), _fake_bits(y)
    elements, packed = layout.rows(_packable(y, layout)), layout.rows(out)
    for p in _pieces(y, layout):
        _set_signs(elements[p.elements], packed[p.packed], p.bit)
    return out


def _set_signs(elements: Tensor, packed: Tensor, bit: int) -> None:
    if bit == 0:
        torch.le(elements, 0, out=packed.view(torch.bool))
    else:
        packed.add_(torch.le(elements, 0).view(torch.uint8), alpha=1 << bit)


def _pieces(y: Tensor, layout: BitLayout) -> Eighths:
    return Eighths(layout.counts(y.shape), most_bytes(tensor_bytes(y)))


def _sign_workspace(y: Tensor) -> int:
    return _pieces(y, BitLayout.to_pack(y)).largest + _copy_bytes(y) + _SCALAR_BYTES


def pack_mask(mask: Tensor) -> Tensor:
    """One bit for each element of a bool tensor, in the shape of `sign_bits`."""
    layout, out = BitLayout.to_pack(mask), _fake_bits(mask)
    elements, packed = layout.rows(_packable(mask, layout)).view(torch.uint8), layout.rows(out)
    for p in Eighths(layout.counts(mask.shape), out.numel()):
        if p.bit == 0:
            packed[p.packed].copy_(elements[p.elements])
        else:
            packed[p.packed].add_(elements[p.elements], alpha=1 << p.bit)
    return out


def _packable(t: Tensor, layout: BitLayout) -> Tensor:
    return t if layout.fits(t.shape, t.stride()) else t.contiguous()


def _copy_bytes(t: Tensor) -> int:
    """Bytes of the copy that packing makes of a tensor with gaps."""
    return 0 if BitLayout.to_pack(t).fits(t.shape, t.stride()) else tensor_bytes(t)


def _fake_bits(t: Tensor) -> Tensor:
    return t.new_empty(BitLayout.to_pack(t).bits(t.shape), dtype=torch.uint8)


# -- unpacking ---------------------------------------------------------------------------------------------------------
def unpack_mask(bits: Tensor, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    """The bool tensor of this shape whose bits are given. strides : of the packed tensor; if it had gaps, the result has none
    and is contiguous."""
    layout, out = BitLayout.of(bits, shape, strides), _fake_mask(bits, shape, strides)
    elements, packed = layout.rows(out).view(torch.uint8), layout.rows(bits)
    for p in Eighths(layout.counts(shape), bits.numel()):
        part = elements[p.elements]
        torch.bitwise_right_shift(packed[p.packed], p.bit, out=part)
        part.bitwise_and_(1)
    return out


def _fake_mask(bits: Tensor, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    return bits.new_empty_strided(tuple(shape), strides_of_packed(shape, strides), dtype=torch.bool)


def _is_set(packed: Tensor, p: Piece) -> Tensor:
    """0 or 1 for each element of a piece: uint8. packed : rows of bits."""
    return torch.bitwise_right_shift(packed[p.packed], p.bit).bitwise_and_(1)


# -- the backward of a ReLU ----------------------------------------------------------------------------------------------
def zero_by_bits(g: Tensor, bits: Tensor, strides: Sequence[int]) -> Tensor:
    """`aten.threshold_backward(g, y, 0)`, the same bits and strides, from `sign_bits(y)`. strides : of y."""
    out = _fake_zeroed(g, bits, strides)
    _zero(g, bits, strides, out)
    return out


def _zero_over(g: Tensor, bits: Tensor, strides: Sequence[int]) -> Tensor:
    _zero(g, bits, strides, g)
    return g


def _zeroed_fits(g: Tensor, bits: Tensor, strides: Sequence[int]) -> bool:
    return element_wise_strides(g.shape, strides, g.stride()) == g.stride()


zero_over = where_it_fits(_zeroed_fits, _zero_over, zero_by_bits)


def _zero(g: Tensor, bits: Tensor, strides: Sequence[int], out: Tensor) -> None:
    layout, zero = BitLayout.of(bits, g.shape, strides), g.new_zeros(())
    if not layout.fits(out.shape, out.stride()):
        aten.where.self_out(unpack_mask(bits, g.shape, strides), zero, g, out=out)
        return
    if not layout.fits(g.shape, g.stride()):
        g = out.copy_(g)
    given, packed, results = map(layout.rows, (g, bits, out))
    for p in _pieces(g, layout):
        part = results[p.elements]
        aten.where.self_out(_is_set(packed, p).view(torch.bool), zero, given[p.elements], out=part)


def _zero_workspace(g: Tensor, bits: Tensor, strides: Sequence[int]) -> int:
    layout = BitLayout.of(bits, g.shape, strides)
    fits = layout.fits(g.shape, element_wise_strides(g.shape, strides, g.stride()))
    return (_pieces(g, layout).largest if fits else int(g.numel())) + _SCALAR_BYTES


def _fake_zeroed(g: Tensor, bits: Tensor, strides: Sequence[int]) -> Tensor:
    return g.new_empty_strided(g.shape, element_wise_strides(g.shape, strides, g.stride()))


# -- the backward of a dropout -------------------------------------------------------------------------------------------
def dropout_backward_by_bits(g: Tensor, bits: Tensor, strides: Sequence[int], scale: float) -> Tensor:
    """`aten.native_dropout_backward(g, mask, scale)`, the same bits and strides, from `pack_mask(mask)`. strides : of mask.

    Infinity times 0 is a NaN here too. Which of the NaNs it is may differ in types of 16 bits: the CPU's kernels for those
    give one in full vectors of elements, and another one in the rest."""
    out = _fake_dropped(g, bits, strides, scale)
    _drop(g, bits, strides, scale, out)
    return out


def _drop_over(g: Tensor, bits: Tensor, strides: Sequence[int], scale: float) -> Tensor:
    _drop(g, bits, strides, scale, g)
    return g


def _dropped_fits(g: Tensor, bits: Tensor, strides: Sequence[int], scale: float) -> bool:
    return dropout_strides(g.shape, g.stride(), strides, g.device) == g.stride()


drop_over = where_it_fits(_dropped_fits, _drop_over, dropout_backward_by_bits)


def _drop(g: Tensor, bits: Tensor, strides: Sequence[int], scale: float, out: Tensor) -> None:
    layout = BitLayout.of(bits, g.shape, strides)
    if not layout.fits(out.shape, out.stride()):
        torch.mul(g, unpack_mask(bits, g.shape, strides), out=out).mul_(scale)
        return
    if not layout.fits(g.shape, g.stride()):
        g = out.copy_(g)
    given, packed, results = map(layout.rows, (g, bits, out))
    for p in _drop_pieces(g, layout):
        part = results[p.elements]
        # in the kernels' order, so that an infinite gradient times 0 is NaN here too
        torch.mul(given[p.elements], _is_set(packed, p).to(g.dtype), out=part).mul_(scale)


def _drop_pieces(g: Tensor, layout: BitLayout) -> Eighths:
    return Eighths(layout.counts(g.shape), most_bytes(tensor_bytes(g)) // (1 + g.element_size()))


def _drop_workspace(g: Tensor, bits: Tensor, strides: Sequence[int], scale: float) -> int:
    layout = BitLayout.of(bits, g.shape, strides)
    fits = layout.fits(g.shape, dropout_strides(g.shape, g.stride(), strides, g.device))
    # the CPU's kernel makes a copy of the mask in the type of g; a GPU's does not
    elements = _drop_pieces(g, layout).largest if fits else int(g.numel())
    return elements * (1 + g.element_size()) + _SCALAR_BYTES


def _fake_dropped(g: Tensor, bits: Tensor, strides: Sequence[int], scale: float) -> Tensor:
    return g.new_empty_strided(g.shape, dropout_strides(g.shape, g.stride(), strides, g.device))


SIGN_BITS = define("sign_bits(Tensor y) -> Tensor", OwnOp(sign_bits, _fake_bits, _sign_workspace))
PACK_MASK = define("pack_mask(Tensor mask) -> Tensor", OwnOp(pack_mask, _fake_bits, _copy_bytes))
UNPACK_MASK = define(
    "unpack_mask(Tensor bits, int[] shape, int[] strides) -> Tensor",
    OwnOp(unpack_mask, _fake_mask, lambda bits, shape, strides: _SCALAR_BYTES),
)
ZERO_BY_BITS = define(
    "zero_by_bits(Tensor g, Tensor bits, int[] strides) -> Tensor",
    OwnOp(zero_by_bits, _fake_zeroed, _zero_workspace),
)
DROPOUT_BACKWARD_BY_BITS = define(
    "dropout_backward_by_bits(Tensor g, Tensor bits, int[] strides, float scale) -> Tensor",
    OwnOp(dropout_backward_by_bits, _fake_dropped, _drop_workspace),
)


# -- records -----------------------------------------------------------------------------------------------------------
def _bits(call: Call) -> list[Draft]:
    """By the dimensions that bits have beside the bytes of a row: two, one, or none."""
    return alike(call, range(len(call.shape("bits") or call.out()) - 1))


def shape_of_slice(part: Slice, whole: Sequence[int]) -> list[int]:
    """The slice's shape of a tensor that is cut as the result is."""
    return [part.of(n) if d == part.outs[0] else n for d, n in enumerate(whole)]


def packed_strides(part: Slice) -> dict[str, Any]:
    """The strides of the tensor that was packed, or of the result of a pool, as a slice of it has them that is made anew."""
    whole = part.call.out()
    return {"strides": list(strides_of_slice(whole, part.call["strides"], shape_of_slice(part, whole)))}


def _shape_and_strides(part: Slice) -> dict[str, Any]:
    return {"shape": shape_of_slice(part, part.call["shape"])} | packed_strides(part)


# Moves, comparisons and exact products.
OPERATORS = {
    "sign_bits": Operator(_bits, exact=EVERYWHERE),
    "pack_mask": Operator(_bits, exact=EVERYWHERE),
    "unpack_mask": Operator(_bits, _shape_and_strides, exact=EVERYWHERE),
    "zero_by_bits": Operator(_bits, packed_strides, exact=EVERYWHERE, over={ZERO_BY_BITS: {0: zero_over}}),
    "dropout_backward_by_bits": Operator(
        _bits, packed_strides, exact=EVERYWHERE, over={DROPOUT_BACKWARD_BY_BITS: {0: drop_over}}
    ),
}
