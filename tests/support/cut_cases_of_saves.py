"""Calls of this package's own operators to be cut into slices: bits by rows of one and of two dimensions, offsets of pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from cut_cases import Maker, aten, cases
from rekindle.torch.operators.pool_offsets import MAX_POOL2D_BACKWARD_BY_OFFSETS, POOL_OFFSETS
from rekindle.torch.operators.small_saves import (
    DROPOUT_BACKWARD_BY_BITS,
    PACK_MASK,
    SIGN_BITS,
    UNPACK_MASK,
    ZERO_BY_BITS,
)


@cases
def bits(m: Maker) -> Iterator[tuple[str, Any]]:
    n, c, row = m.s.n, m.s.c, 257 + m.s.row
    for kind, shape in (
        ("rows", (n, row)),
        ("planes", (n, c, row)),
        ("images", (n, c, 43, m.s.side + 3)),
        ("short", (n, 100, 3)),
    ):
        y, grad = m.real(*shape), m.real(*shape)
        mask, strides = y > 0, list(y.stride())
        yield f"sign_bits_{kind}", (SIGN_BITS, y)
        yield f"pack_mask_{kind}", (PACK_MASK, mask)
        yield f"unpack_mask_{kind}", (UNPACK_MASK, PACK_MASK(mask), list(shape), strides)
        yield f"zero_by_bits_{kind}", (ZERO_BY_BITS, grad, SIGN_BITS(y), strides)
        yield f"dropout_by_bits_{kind}", (DROPOUT_BACKWARD_BY_BITS, grad, PACK_MASK(mask), strides, 1.25)
    y = m.real(c, n, row).transpose(0, 1)  # without gaps, in another order
    yield "zero_by_bits_transposed", (ZERO_BY_BITS, m.real(n, c, row), SIGN_BITS(y), list(y.stride()))
    yield "unpack_mask_transposed", (UNPACK_MASK, PACK_MASK(y > 0), list(y.shape), list(y.stride()))


@cases
def offsets(m: Maker) -> Iterator[tuple[str, Any]]:
    s = m.s
    last = torch.channels_last
    images = m.real(s.n, s.c, s.side + 4, s.side)
    for kind, x in (("", images), ("_last", images.to(memory_format=last)), ("_of_one", images[0])):
        window = ([3, 2], [2], [1], [1, 1])
        out, at = aten.max_pool2d_with_indices(x, *window, True)
        size, grad = list(x.shape), torch.cos(out)
        strides = list(aten.max_pool2d_with_indices_backward(grad, x, *window, True, at).stride())
        saved = POOL_OFFSETS(at, size, *window)
        yield f"pool_offsets{kind}", (POOL_OFFSETS, at, size, *window)
        yield f"max_pool_by_offsets{kind}", (MAX_POOL2D_BACKWARD_BY_OFFSETS, grad, saved, size, strides, *window, True)
