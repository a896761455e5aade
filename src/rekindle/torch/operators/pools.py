"""Poolings, resizings and paddings of images, forward and backward: one record each. Each plane is computed by itself."""

from __future__ import annotations

import torch

from .corrected import by_shape, fitted
from .cut_call import Rule, Slicing, alike, shape_of_result
from .record import EVERYWHERE, ON_CPU, Given, Operator, Sample, Valid, always
from .strides import laid_out_as

aten = torch.ops.aten


def _planes(n: int) -> Rule:
    """Of an op on each plane (or line, or volume) by itself: by the dimensions before the last `n`."""
    return lambda call: alike(call, range(len(call.out()) - n))


def _by_batch(q: Slicing) -> bool:
    return all(d in (0, None) for d in q.cut.ins)


def _indices_of(name: str) -> Sample:
    """Indices as the forward op gives them; the input may be a stand-in, whose numbers all lie in one place."""

    def make(x: Given) -> Valid:
        dense = torch.randn(x["self"].shape, dtype=x["self"].dtype, device=x["self"].device)
        window = (x[k] for k in ("kernel_size", "stride", "padding", "dilation", "ceil_mode"))
        return {("indices", 0): getattr(aten, name)(dense, *window)[1]}

    return make


def _max_pool_backward(n: int, saved: tuple[str, str] | None = None) -> Operator:
    """Of `n` dimensions. On a CPU one thread adds up each plane, in one order; a GPU may add in any order."""
    return Operator(
        _planes(n), exact=ON_CPU, same_bits=always, sample=_indices_of(f"max_pool{n}d_with_indices"),
        run=by_shape, shape_only=(1, 0), saved=saved,
    )  # fmt: skip


_RESIZES = {
    "upsample_nearest1d": 1, "_upsample_nearest_exact1d": 1, "upsample_linear1d": 1, "_upsample_nearest_exact2d": 2,
    "upsample_bilinear2d": 2, "upsample_bicubic2d": 2, "_upsample_bilinear2d_aa": 2, "_upsample_bicubic2d_aa": 2,
    "upsample_nearest3d": 3, "_upsample_nearest_exact3d": 3, "upsample_trilinear3d": 3,
}  # fmt: skip
_OTHERS = {
    "reflection_pad1d": 1, "replication_pad1d": 1, "replication_pad2d": 2, "reflection_pad3d": 3, "replication_pad3d": 3,
    "adaptive_max_pool2d": 2, "_adaptive_avg_pool3d": 3,
}  # fmt: skip
OPERATORS = {
    **{op: Operator(_planes(n)) for op, n in (_RESIZES | _OTHERS).items()},
    **{f"{op}_backward": Operator(_planes(n), shape_of_result("input_size")) for op, n in _RESIZES.items()},
    **{f"{op}_backward": Operator(_planes(n)) for op, n in _OTHERS.items()},
    "upsample_nearest2d": Operator(_planes(2), same_bits=_by_batch),
    "upsample_nearest2d_backward": Operator(_planes(2), shape_of_result("input_size"), same_bits=_by_batch),
    "max_pool2d_with_indices": Operator(_planes(2), exact=EVERYWHERE),
    "max_pool2d_with_indices_backward": _max_pool_backward(2, saved=("offsets", "pool")),
    "max_pool3d_with_indices": Operator(_planes(3), exact=EVERYWHERE),
    "max_pool3d_with_indices_backward": _max_pool_backward(3),
    "avg_pool2d": Operator(_planes(2), same_bits=_by_batch),
    "avg_pool2d_backward": Operator(_planes(2), same_bits=_by_batch, run=by_shape, shape_only=(1, 0)),
    "avg_pool3d": Operator(_planes(3)),
    "avg_pool3d_backward": Operator(_planes(3), run=by_shape, shape_only=(1, 0)),
    "_adaptive_avg_pool2d": Operator(_planes(2), same_bits=_by_batch),
    "_adaptive_avg_pool2d_backward": Operator(_planes(2), same_bits=_by_batch),
    "adaptive_max_pool3d": Operator(_planes(3)),
    "adaptive_max_pool3d_backward": Operator(_planes(3), dense=True),
    "reflection_pad2d": Operator(_planes(2), strides=laid_out_as(0)),  # before torch 2.12
    "reflection_pad2d_backward": Operator(_planes(2), strides=laid_out_as(1)),
    "col2im": Operator(run=fitted),
}
