"""Cuts of poolings, resizings, losses and embeddings, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from .cut_call import SUM, Call, Draft, Rule, alike, broadcast

_NONE, _SUM = 0, 2  # values of the argument `reduction` of losses; 1 is a mean, over the elements of each call


def _planes(n: int) -> Rule:
    """Of an op on each plane (or line, or volume) by itself: by the dimensions before the last `n`."""
    return lambda call: alike(call, range(len(call.out()) - n))


def _loss(call: Call) -> list[Draft]:
    """A loss of element by element: a sum of sums, or not reduced."""
    if call["reduction"] == _NONE:
        return broadcast(call)
    return [replace(cut, outs=(SUM,)) for cut in alike(call, range(len(call.shape("self"))))
            if call["reduction"] == _SUM and len({shape for _, _, shape in call.tensors}) == 1]  # fmt: skip


def _loss_backward(call: Call) -> list[Draft]:
    """The gradient of such a loss; that of a sum is one number."""
    return broadcast(call) if call["reduction"] in (_NONE, _SUM) else []


def _nll_loss_backward(call: Call, rank: int) -> Iterator[Draft]:
    """By rows: the gradient of a mean is divided by the total weight, which each slice is given."""
    if len(call.shape("self")) == rank:
        by_row = call["reduction"] == _NONE
        yield Draft({"grad_output": 0 if by_row else None, "self": 0, "target": 0}, (0,))


def _embedding(call: Call) -> Iterator[Draft]:
    last = len(call.shape("indices"))
    yield from (Draft({"indices": d}, (d,)) for d in range(last))
    yield Draft({"weight": 1}, (last,))


def _embedding_dense_backward(call: Call) -> Iterator[Draft]:
    """By index (a sum, where gradients are not scaled by how often an index occurs) and by column."""
    last = len(call.shape("indices"))
    if not call["scale_grad_by_freq"]:
        yield from (Draft({"grad_output": d, "indices": d}, (SUM,)) for d in range(last))
    yield Draft({"grad_output": last}, (1,))


_LAYERS: dict[str, Rule] = {
    "nll_loss_backward": partial(_nll_loss_backward, rank=2),
    "nll_loss2d_backward": partial(_nll_loss_backward, rank=4),
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_dense_backward,
}
_LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss")
_PLANES = {
    1: ("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d", "reflection_pad1d", "replication_pad1d"),
    2: (
        "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d", "upsample_nearest2d",
        "_upsample_nearest_exact2d", "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa", "reflection_pad2d", "replication_pad2d",
    ),
    3: (
        "max_pool3d_with_indices", "avg_pool3d", "_adaptive_avg_pool3d", "adaptive_max_pool3d", "upsample_nearest3d",
        "_upsample_nearest_exact3d", "upsample_trilinear3d", "reflection_pad3d", "replication_pad3d",
    ),
}  # fmt: skip
RULES: dict[str, Rule] = {
    **_LAYERS,
    **{f"{loss}{phase}": rule for loss in _LOSSES for phase, rule in (("", _loss), ("_backward", _loss_backward))},
    **{f"{op}{phase}": _planes(n) for n, ops in _PLANES.items() for op in ops for phase in ("", "_backward")},
}
