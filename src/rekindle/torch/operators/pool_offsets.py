"""Operators that save where in its window a max-pool found each maximum: a byte each, where `aten.max_pool2d_with_indices`
saves an index of 8 bytes into the whole plane.

An offset counts from the window's first element inside the image, so that 0 is valid in every window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .cut_call import Call, Draft, Slice, alike
from .pieces import Planes, most_bytes, tensor_bytes
from .record import EVERYWHERE, ON_CPU, Operator, OwnOp, always, define
from .small_saves import packed_strides, shape_of_slice

aten = torch.ops.aten
Ints = Sequence[int]
_INDEX_BYTES = 8
_VECTOR_BYTES = 64  # per row and column of results, of the temporaries that make the windows' first elements


@dataclass(frozen=True)
class _Windows:
    """The windows of a max-pool. All pairs are (rows, columns); width : of the input."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    width: int

    @classmethod
    def of(cls, size: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints) -> _Windows:
        """size : of the input, as the other arguments in the form that `aten.max_pool2d_with_indices` takes."""
        return cls(_pair(kernel), _pair(stride or kernel), _pair(padding), _pair(dilation), int(size[-1]))

    @property
    def dtype(self) -> torch.dtype:
        """The type of offsets."""
        last = self.kernel[0] * self.kernel[1] - 1
        return torch.uint8 if last < 2**8 else torch.int16 if last < 2**15 else torch.int32

    def first(self, dim: int, results: int, device: torch.device) -> Tensor:
        """Row (dim 0) or column (dim 1) of the first element of each window that lies inside the image: int64[results]."""
        step, begin = self.stride[dim], -self.padding[dim]
        start = torch.arange(begin, begin + results * step, step, device=device)
        return torch.maximum(start, start.remainder(self.dilation[dim]))

    def firsts(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Two parts of the index of each window's first element, which are to be added: [rows, 1] and [columns]."""
        rows, columns = (self.first(dim, t.shape[dim - 2], t.device) for dim in (0, 1))
        return rows.mul_(self.width)[:, None], columns


def _pair(x: Ints) -> tuple[int, int]:
    return int(x[0]), int(x[-1])


# -- forward -----------------------------------------------------------------------------------------------------------
def pool_offsets(indices: Tensor, size: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints) -> Tensor:
    """The offset in its window of each index that `aten.max_pool2d_with_indices` returned, laid out as the indices.

    indices : [batch, channels, rows, columns] or without a batch; int64. size : of the pool's input. The others : as given to
    the pool. Returns uint8 for windows of up to 256 elements, int16 or int32 for larger ones. An index before its window
    (some kernels return 0 where all elements are minus infinity) becomes the window's first element.
    """
    windows = _Windows.of(size, kernel, stride, padding, dilation)
    out = _fake_offsets(indices, size, kernel, stride, padding, dilation)
    given, results, firsts = _batched(indices), _batched(out), windows.firsts(indices)
    for images, channels in _forward_planes(given):
        results[images, channels].copy_(_offsets(given[images, channels], windows, firsts))
    return out


def _offsets(indices: Tensor, windows: _Windows, firsts: tuple[Tensor, Tensor]) -> Tensor:
    (rows, columns), row = firsts, windows.dilation[0] * windows.width
    distance = indices.sub(rows).sub_(columns).clamp_(min=0)
    down = distance.div(row, rounding_mode="floor")
    across = distance.sub_(down, alpha=row).div_(windows.dilation[1], rounding_mode="floor")
    return across.add_(down, alpha=windows.kernel[1])


def _forward_planes(indices: Tensor) -> Planes:
    plane = 2 * _INDEX_BYTES * indices.shape[2] * indices.shape[3]
    return Planes((indices.shape[0], indices.shape[1]), plane, plane, most_bytes(tensor_bytes(indices)))


def _offsets_workspace(indices: Tensor, *_: Ints) -> int:
    return _forward_planes(_batched(indices)).bytes + _VECTOR_BYTES * sum(indices.shape[-2:])


def _fake_offsets(indices: Tensor, size: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints) -> Tensor:
    return torch.empty_like(indices, dtype=_Windows.of(size, kernel, stride, padding, dilation).dtype)


def _batched(t: Tensor) -> Tensor:
    return t if t.dim() == 4 else t[None]


# -- backward ----------------------------------------------------------------------------------------------------------
def max_pool2d_backward_by_offsets(
    g: Tensor, offsets: Tensor, size: Ints, strides: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints,
    ceil_mode: bool,
) -> Tensor:  # fmt: skip
    """`aten.max_pool2d_with_indices_backward`, the same bits, from `pool_offsets`.

    size, strides : of the result: size of the pool's input, strides contiguous or channels last. The others : as given to the
    pool. The kernel runs on a few images at a time, or on a few channels of a large one. It reads the pool's input for its
    shape alone, for which the result stands in.
    """
    windows = _Windows.of(size, kernel, stride, padding, dilation)
    out = g.new_empty_strided(tuple(size), tuple(strides))
    whole, gradient, given, firsts = _batched(out), _batched(g), _batched(offsets), windows.firsts(g)
    layout = _layout(whole)
    for images, channels in _backward_planes(gradient, whole):
        part = whole[images, channels]
        # some kernels write a result as if it had no gaps
        into = part if part.is_contiguous(memory_format=layout) else torch.empty_like(part, memory_format=layout)
        _backward_of_part(gradient[images, channels], given[images, channels], into, windows, firsts, ceil_mode)
        if into is not part:
            part.copy_(into)
        del into
    return out


def _backward_of_part(
    g: Tensor, offsets: Tensor, out: Tensor, windows: _Windows, firsts: tuple[Tensor, Tensor], ceil_mode: bool
) -> None:
    indices = _indices(offsets, windows, firsts)
    aten.max_pool2d_with_indices_backward.grad_input(
        g.contiguous(memory_format=_layout(out)),  # on the CPU a gradient in another layout chooses another kernel
        out, windows.kernel, windows.stride, windows.padding, windows.dilation, ceil_mode, indices, grad_input=out,
    )  # fmt: skip


def _indices(offsets: Tensor, windows: _Windows, firsts: tuple[Tensor, Tensor]) -> Tensor:
    (rows, columns), (down, across) = firsts, windows.dilation
    indices = offsets.to(torch.int64)
    row = indices.div(windows.kernel[1], rounding_mode="floor")
    indices.mul_(across).add_(row, alpha=down * windows.width - across * windows.kernel[1])
    return indices.add_(rows).add_(columns)


def _layout(out: Tensor) -> torch.memory_format:
    """The layout of a result, contiguous or channels last."""
    return torch.contiguous_format if out.is_contiguous() else torch.channels_last


def _backward_planes(g: Tensor, out: Tensor) -> Planes:
    """g : [batch, channels, rows, columns]. out : [batch, channels, height, width]."""
    results, elements, size = g.shape[2] * g.shape[3], out.shape[2] * out.shape[3], g.element_size()
    making, last = 2 * _INDEX_BYTES * results, not out.is_contiguous()
    copied = not g.is_contiguous(memory_format=_layout(out))
    whole = max(making, (_INDEX_BYTES + size * copied) * results)
    split = max(making, (_INDEX_BYTES + size) * results) + size * elements if last else whole
    return Planes((g.shape[0], g.shape[1]), whole, split, most_bytes(tensor_bytes(out)))


def _backward_workspace(g: Tensor, offsets: Tensor, size: Ints, strides: Ints, *_: object) -> int:
    out = torch.empty_strided(tuple(size), tuple(strides), dtype=g.dtype, device="meta")
    return _backward_planes(_batched(g), _batched(out)).bytes + _VECTOR_BYTES * sum(g.shape[-2:])


def _fake_backward(g: Tensor, offsets: Tensor, size: Ints, strides: Ints, *_: object) -> Tensor:
    return g.new_empty_strided(tuple(size), tuple(strides))


POOL_OFFSETS = define(
    "pool_offsets(Tensor indices, int[] size, int[] kernel, int[] stride, int[] padding, int[] dilation) -> Tensor",
    OwnOp(pool_offsets, _fake_offsets, _offsets_workspace),
)
MAX_POOL2D_BACKWARD_BY_OFFSETS = define(
    "max_pool2d_backward_by_offsets(Tensor g, Tensor offsets, int[] size, int[] strides, int[] kernel, int[] stride, "
    "int[] padding, int[] dilation, bool ceil_mode) -> Tensor",
    OwnOp(max_pool2d_backward_by_offsets, _fake_backward, _backward_workspace),
)


def _planes(call: Call) -> list[Draft]:
    """By batch and channel."""
    return alike(call, range(len(call.out()) - 2))


def _size(part: Slice) -> dict[str, Any]:
    return {"size": shape_of_slice(part, part.call["size"])}


OPERATORS = {
    "pool_offsets": Operator(_planes, _size, exact=EVERYWHERE),
    "max_pool2d_backward_by_offsets": Operator(
        _planes, lambda part: _size(part) | packed_strides(part), exact=ON_CPU, same_bits=always
    ),
}
