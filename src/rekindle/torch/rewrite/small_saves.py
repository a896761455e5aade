"""Operators that save one bit per element for backward: the signs that a ReLU needs, and the masks of dropouts.

Backward gives the same bits as with the whole tensor. The bits follow the order in which the elements lie in memory, so every
reader is given the strides of the tensor that was packed (`strides_of_packed`); a tensor with gaps is packed as a contiguous
copy. `pieces.eighths` says which bit stands for which element.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..capture.own_ops import OwnOp, define
from .memory_order import dropout_strides, element_wise_strides, flat, lies_as, strides_of_packed
from .pieces import Piece, eighths, most_bytes, packed_bytes, tensor_bytes

aten = torch.ops.aten
_SCALAR_BYTES = 32  # of the tensors without dimensions that a kernel makes for numbers, or a little more


# -- packing -----------------------------------------------------------------------------------------------------------
def sign_bits(y: Tensor) -> Tensor:
    """One bit for each element of y, set where y <= 0, as `aten.threshold_backward(g, y, 0)` zeroes: uint8[ceil(n / 8)]."""
    elements = _packed_order(y)
    out = y.new_empty(packed_bytes(y.numel()), dtype=torch.uint8)
    for p in eighths(y.numel(), _sign_piece(y)):
        _set_signs(elements[p.elements], out[p.packed], p.bit)
    return out


def _set_signs(elements: Tensor, packed: Tensor, bit: int) -> None:
    if bit == 0:
        torch.le(elements, 0, out=packed.view(torch.bool))
    else:
        packed.add_(torch.le(elements, 0).view(torch.uint8), alpha=1 << bit)


def _sign_piece(y: Tensor) -> int:
    return min(packed_bytes(y.numel()), most_bytes(tensor_bytes(y)))


def _sign_workspace(y: Tensor) -> int:
    return _sign_piece(y) + _copy_bytes(y) + _SCALAR_BYTES


def pack_mask(mask: Tensor) -> Tensor:
    """One bit for each element of a bool tensor: uint8[ceil(n / 8)]."""
    elements = _packed_order(mask).view(torch.uint8)
    out = mask.new_empty(packed_bytes(mask.numel()), dtype=torch.uint8)
    for p in eighths(mask.numel(), out.numel()):
        if p.bit == 0:
            out.copy_(elements[p.elements])
        else:
            out[p.packed].add_(elements[p.elements], alpha=1 << p.bit)
    return out


def _packed_order(t: Tensor) -> Tensor:
    """The elements in the order of their bits: [n]."""
    dense = lies_as(t, strides_of_packed(t.shape, t.stride()))
    return flat(t if dense else t.contiguous())


def _copy_bytes(t: Tensor) -> int:
    """Bytes of the copy that packing makes of a tensor with gaps."""
    return 0 if lies_as(t, strides_of_packed(t.shape, t.stride())) else tensor_bytes(t)


def _fake_bits(t: Tensor) -> Tensor:
    return t.new_empty(packed_bytes(t.numel()), dtype=torch.uint8)


# -- unpacking ---------------------------------------------------------------------------------------------------------
def unpack_mask(bits: Tensor, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    """The bool tensor of this shape whose bits are given. strides : of the packed tensor; if it had gaps, the result has none
    and is contiguous."""
    out = _fake_mask(bits, shape, strides)
    elements = flat(out).view(torch.uint8)
    for p in eighths(out.numel(), bits.numel()):
        part = elements[p.elements]
        torch.bitwise_right_shift(bits[p.packed], p.bit, out=part)
        part.bitwise_and_(1)
    return out


def _fake_mask(bits: Tensor, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    return bits.new_empty_strided(tuple(shape), strides_of_packed(shape, strides), dtype=torch.bool)


def _is_set(bits: Tensor, p: Piece) -> Tensor:
    """0 or 1 for each element of a piece: uint8."""
    return torch.bitwise_right_shift(bits[p.packed], p.bit).bitwise_and_(1)


# -- the backward of a ReLU ----------------------------------------------------------------------------------------------
def zero_by_bits(g: Tensor, bits: Tensor, strides: Sequence[int]) -> Tensor:
    """`aten.threshold_backward(g, y, 0)`, the same bits and strides, from `sign_bits(y)`. strides : of y."""
    out = _fake_zeroed(g, bits, strides)
    _zero(g, bits, strides, out)
    return out


def zero_over(g: Tensor, bits: Tensor, strides: Sequence[int]) -> Tensor:
    """`zero_by_bits`, written over g unless the result has other strides."""
    if element_wise_strides(g.shape, strides, g.stride()) != g.stride():
        return zero_by_bits(g, bits, strides)
    _zero(g, bits, strides, g)
    return g


def _zero(g: Tensor, bits: Tensor, strides: Sequence[int], out: Tensor) -> None:
    packed = strides_of_packed(g.shape, strides)
    zero = g.new_zeros(())
    if not lies_as(out, packed):
        aten.where.self_out(unpack_mask(bits, g.shape, strides), zero, g, out=out)
        return
    if not lies_as(g, packed):
        g = out.copy_(g)
    given, results = flat(g), flat(out)
    for p in eighths(g.numel(), _zero_piece(g)):
        part = results[p.elements]
        aten.where.self_out(_is_set(bits, p).view(torch.bool), zero, given[p.elements], out=part)


def _zero_piece(g: Tensor) -> int:
    return min(packed_bytes(g.numel()), most_bytes(tensor_bytes(g)))


def _zero_workspace(g: Tensor, bits: Tensor, strides: Sequence[int]) -> int:
    out = element_wise_strides(g.shape, strides, g.stride())
    whole = not _lie_alike(g.shape, out, strides_of_packed(g.shape, strides))
    return (int(g.numel()) if whole else _zero_piece(g)) + _SCALAR_BYTES


def _lie_alike(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    return all(n == 1 or a == b for n, a, b in zip(shape, one, other, strict=True)) or 0 in shape


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


def drop_over(g: Tensor, bits: Tensor, strides: Sequence[int], scale: float) -> Tensor:
    """`dropout_backward_by_bits`, written over g unless the result has other strides."""
    if dropout_strides(g.shape, g.stride(), strides, g.device) != g.stride():
        return dropout_backward_by_bits(g, bits, strides, scale)
    _drop(g, bits, strides, scale, g)
    return g


def _drop(g: Tensor, bits: Tensor, strides: Sequence[int], scale: float, out: Tensor) -> None:
    packed = strides_of_packed(g.shape, strides)
    if not lies_as(out, packed):
        torch.mul(g, unpack_mask(bits, g.shape, strides), out=out).mul_(scale)
        return
    if not lies_as(g, packed):
        g = out.copy_(g)
    given, results = flat(g), flat(out)
    for p in eighths(g.numel(), _drop_piece(g)):
        part = results[p.elements]
        # in the kernels' order, so that an infinite gradient times 0 is NaN here too
        torch.mul(given[p.elements], _is_set(bits, p).to(g.dtype), out=part).mul_(scale)


def _drop_piece(g: Tensor) -> int:
    return min(packed_bytes(g.numel()), most_bytes(tensor_bytes(g)) // (1 + g.element_size()))


def _drop_workspace(g: Tensor, bits: Tensor, strides: Sequence[int], scale: float) -> int:
    out = dropout_strides(g.shape, g.stride(), strides, g.device)
    whole = not _lie_alike(g.shape, out, strides_of_packed(g.shape, strides))
    # the CPU's kernel makes a copy of the mask in the type of g; a GPU's does not
    return (int(g.numel()) if whole else _drop_piece(g)) * (1 + g.element_size()) + _SCALAR_BYTES


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
    OwnOp(zero_by_bits, _fake_zeroed, _zero_workspace, over={0: zero_over}),
)
DROPOUT_BACKWARD_BY_BITS = define(
    "dropout_backward_by_bits(Tensor g, Tensor bits, int[] strides, float scale) -> Tensor",
    OwnOp(dropout_backward_by_bits, _fake_dropped, _drop_workspace, over={0: drop_over}),
)
