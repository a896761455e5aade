"""Tensors in all layouts and with all kinds of numbers, and comparisons of their bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SPECIAL = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.5, -2.25, 1e-7, -1e-7]
_INTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SHAPES = st.lists(st.integers(0, 5) | st.sampled_from([1, 2, 9]), max_size=5)


def numbers(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    """Numbers of both signs, of which one in three is special."""
    made = torch.Generator().manual_seed(seed)
    usual = torch.randn(shape, generator=made, dtype=torch.float64)
    special = torch.tensor(SPECIAL, dtype=torch.float64)[torch.randint(len(SPECIAL), tuple(shape), generator=made)]
    return torch.where(torch.rand(shape, generator=made) < 0.3, special, usual).to(dtype)


@st.composite
def laid_out(draw: st.DrawFn, t: Tensor) -> Tensor:
    """The same numbers contiguous, with permuted dimensions, with gaps, or, in a quarter of the cases, all rows in one."""
    kind = draw(st.sampled_from(["contiguous", "permuted", "gaps", "expanded"]))
    if kind == "contiguous" or not t.dim():
        return t
    if kind == "permuted":
        order = draw(st.permutations(range(t.dim())))
        back = [order.index(d) for d in range(t.dim())]
        return t.permute(order).contiguous().permute(back)
    if kind == "gaps":
        wide = torch.zeros(*t.shape[:-1], 2 * t.shape[-1] + 1, dtype=t.dtype)
        wide[..., 1::2] = t
        return wide[..., 1::2]
    return t[:1].expand(t.shape)


def same(found: Tensor, expected: Tensor, *, any_nan: bool = False) -> bool:
    """Whether type, shape, strides and bits are the same. Strides of a tensor without elements mean nothing.

    any_nan : in types of 16 bits, a NaN is the same as any other. There the CPU's kernels give one NaN where they compute by
        vectors, and another one in the rest.
    """
    if any_nan and found.element_size() == 2:
        found, expected = (torch.where(t.isnan(), torch.full_like(t, float("nan")), t) for t in (found, expected))
    alike = (found.dtype, found.shape) == (expected.dtype, expected.shape)
    lie_alike = found.stride() == expected.stride() or not found.numel()
    return alike and lie_alike and torch.equal(_bits(found), _bits(expected))


def _bits(t: Tensor) -> Tensor:
    return t.reshape(-1).view(_INTS[t.element_size()])


def form(t: Any) -> tuple[Any, ...]:
    """Everything about a tensor but its numbers."""
    return t.dtype, tuple(t.shape), t.stride(), t.device
