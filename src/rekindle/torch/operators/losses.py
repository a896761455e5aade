"""Losses and embeddings, forward and backward: one record each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from .corrected import fitted
from .cut_call import SUM, Call, Draft, alike, broadcast
from .record import BY_ELEMENT, EVERYWHERE, Given, Operator, Valid
from .strides import contiguous

_NONE, _SUM = 0, 2  # values of the argument `reduction` of losses; 1 is a mean, over the elements of each call


# -- cuts --------------------------------------------------------------------------------------------------------------
def _by_element(call: Call) -> list[Draft]:
    """A loss that compares element with element: the sum of the sums of the slices, or a loss for each element."""
    if call["reduction"] == _NONE:
        return broadcast(call)
    return [replace(cut, outs=(SUM,)) for cut in alike(call, range(len(call.shape("self"))))
            if call["reduction"] == _SUM and len({shape for _, _, shape in call.tensors}) == 1]  # fmt: skip


def _by_element_backward(call: Call) -> list[Draft]:
    """The gradient of a loss that compares element with element. Where the loss is a sum, `grad_output` is one number."""
    return broadcast(call) if call["reduction"] in (_NONE, _SUM) else []


def _nll_backward(call: Call, rank: int) -> Iterator[Draft]:
    """By rows: the gradient of a mean is divided by the total weight, which each slice is given."""
    if len(call.shape("self")) == rank:
        by_row = call["reduction"] == _NONE
        yield Draft({"grad_output": 0 if by_row else None, "self": 0, "target": 0}, (0,))


def _embedding(call: Call) -> Iterator[Draft]:
    last = len(call.shape("indices"))
    yield from (Draft({"indices": d}, (d,)) for d in range(last))
    yield Draft({"weight": 1}, (last,))


def _embedding_backward(call: Call) -> Iterator[Draft]:
    """By index (a sum, where gradients are not scaled by how often an index occurs) and by column."""
    last = len(call.shape("indices"))
    if not call["scale_grad_by_freq"]:
        yield from (Draft({"grad_output": d, "indices": d}, (SUM,)) for d in range(last))
    yield Draft({"grad_output": last}, (1,))


# -- valid arguments ---------------------------------------------------------------------------------------------------
def below(bound: int, like: torch.Tensor) -> torch.Tensor:
    """Random indices below a bound, in the shape of another tensor."""
    return torch.randint(bound, like.shape, dtype=like.dtype, device=like.device)


def _rows(x: Given) -> Valid:
    rows = x["weight"].shape[0] if "weight" in x else x["num_weights"]
    return {("indices", 0): below(rows, x["indices"])}


def _classes(x: Given) -> Valid:
    made = {("target", 0): below(x["self"].shape[1 if x["self"].dim() > 1 else 0], x["target"])}
    if "total_weight" in x:
        made["total_weight", 0] = torch.full_like(x["total_weight"], max(1, x["target"].numel()))
    return made


def _probabilities(x: Given) -> Valid:
    return {(k, 0): t.sigmoid() for k, t in x.items() if k in ("self", "target") and isinstance(t, torch.Tensor)}


_LOSS = Operator(_by_element, vectors=BY_ELEMENT, run=fitted)
_BACKWARD = Operator(_by_element_backward, vectors=BY_ELEMENT, strides=contiguous)

OPERATORS = {
    "mse_loss": _LOSS,
    "mse_loss_backward": _BACKWARD,
    "smooth_l1_loss": _LOSS,
    "smooth_l1_loss_backward": _BACKWARD,
    "huber_loss": replace(_LOSS, run=None),
    "huber_loss_backward": _BACKWARD,
    "binary_cross_entropy": replace(_LOSS, sample=_probabilities),
    "binary_cross_entropy_backward": replace(_BACKWARD, strides=None, sample=_probabilities),
    "soft_margin_loss": _LOSS,
    "soft_margin_loss_backward": replace(_BACKWARD, strides=None),
    "nll_loss_forward": Operator(sample=_classes),
    "nll_loss_backward": Operator(partial(_nll_backward, rank=2), exact=EVERYWHERE, sample=_classes, shape_only=(1, 0)),
    "nll_loss2d_backward": Operator(
        partial(_nll_backward, rank=4), exact=EVERYWHERE, sample=_classes, shape_only=(1, 0)
    ),
    "embedding": Operator(_embedding, exact=EVERYWHERE, sample=_rows),
    "embedding_dense_backward": Operator(_embedding_backward, sample=_rows),
}
