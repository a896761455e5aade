"""Which bits stand for which elements of a packed tensor: rows that are packed each by itself, or all elements in one row.

A row holds the elements behind one index of the first dimension, or of the first two, so that bits can be cut along those
dimensions as the tensor can. Bits without rows follow the order in which all elements lie in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from torch import Tensor

from ..private import make_contiguous_strides_for
from .memory_order import strides_of_packed
from .pieces import packed_bytes

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
