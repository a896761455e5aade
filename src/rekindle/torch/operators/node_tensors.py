"""The tensors that a node of a captured graph returns, and the storages they lie in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from . import rules
from .memory_order import elements_spanned

Part = tuple[fx.Node, int]  # one tensor: member `index` of the result of a node (0 for a plain tensor)

_SHORT = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "b8",
    torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip


def storage_bytes(t: torch.Tensor) -> int:
    """Bytes of the whole storage behind a tensor, as the allocator counts them; fake tensors too."""
    return int(t.untyped_storage().nbytes())


def span(t: torch.Tensor) -> tuple[int, int]:
    """(first, last + 1) of the bytes of its storage that a tensor uses."""
    first = int(t.storage_offset())
    return first * t.element_size(), (first + elements_spanned(t)) * t.element_size()


def overlap(s: torch.Tensor, t: torch.Tensor) -> bool:
    """Whether two tensors use the same bytes of one storage. Slices of a buffer that lie side by side do not."""
    if s.untyped_storage()._cdata != t.untyped_storage()._cdata:
        return False
    (a, b), (c, d) = span(s), span(t)
    return a < d and c < b


def bytes_spanned(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes from the first to the last that these tensors use of the storage they share. It follows from shapes,
    strides and distances alone, and so is the same for a tensor and for a copy of it, however large the storages are."""
    begins, ends = zip(*map(span, tensors), strict=True)
    return int(max(ends) - min(begins))


def tensors_of(n: fx.Node) -> list[tuple[int, torch.Tensor]]:
    """(member index, tensor) of every tensor that a node returns."""
    val = n.meta.get("val")
    if isinstance(val, torch.Tensor):
        return [(0, val)]
    if isinstance(val, tuple | list):
        return [(i, t) for i, t in enumerate(val) if isinstance(t, torch.Tensor)]
    return []


def with_values(args: Any) -> Any:
    """The arguments of a node, each node among them replaced by its fake tensor."""
    return fx.map_arg(args, lambda n: n.meta.get("val"))


def same_layout(gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether autograd stores this gradient as it is: it has the parameter's strides, or no gaps where that one has gaps."""
    if not torch.ops.aten.is_non_overlapping_and_dense(parameter):
        return gradient.is_contiguous()
    both = zip(gradient.shape, gradient.stride(), parameter.stride(), strict=True)
    return all(n == 1 or mine == its for n, mine, its in both)


def is_member(n: fx.Node) -> bool:
    """Whether the node takes one member out of the tuple that another node returns."""
    return n.op == "call_function" and getattr(n.target, "__name__", "") == "getitem"


def is_view(n: fx.Node) -> bool:
    """Whether every tensor that the node returns lies in the storage of one of its arguments, or the node `is_member`."""
    if is_member(n) or n.target in rules.PASS_THROUGH:
        return True
    outs = {t.untyped_storage()._cdata for _, t in tensors_of(n)}
    return bool(outs) and outs <= {t.untyped_storage()._cdata for a in n.all_input_nodes for _, t in tensors_of(a)}


def describe(t: torch.Tensor) -> str:
    """dtype and shape: f32[64,3,224,224]"""
    return f"{_SHORT.get(t.dtype, str(t.dtype).removeprefix('torch.'))}[{','.join(map(str, t.shape))}]"
