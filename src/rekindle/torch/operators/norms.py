"""Layer, RMS, group and batch norms, forward and backward: one record each.

`hidden_writes` and `lowering.writes` say which of them write running statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from .corrected import of_dense
from .cut_call import SUM, Call, Draft, Slice, Slicing
from .record import Given, Operator, Valid, always
from .strides import contiguous, laid_out_as

aten = torch.ops.aten


# -- cuts --------------------------------------------------------------------------------------------------------------
def _layer_norm(call: Call) -> Iterator[Draft]:
    """By the dimensions that are not normalised; the statistics keep them."""
    for d in range(len(call.shape("input")) - len(call["normalized_shape"])):
        yield Draft({"input": d}, (d,) * len(call.results))


def _layer_norm_backward(call: Call) -> Iterator[Draft]:
    """The same; gradients of weight and bias are sums."""
    for d in range(len(call.shape("input")) - len(call["normalized_shape"])):
        ins = {name: d for name in ("grad_out", "input", "mean", "rstd")}
        yield Draft(ins, (d, *(SUM for _ in call.results[1:])))


def _group_norm(call: Call) -> Iterator[Draft]:
    yield Draft({"input": 0}, (0, 0, 0))
    yield Draft({"input": 1, "weight": 0, "bias": 0}, (1, 1, 1), most=call["group"])


def _group_norm_backward(call: Call) -> Iterator[Draft]:
    ins = ("grad_out", "input", "mean", "rstd")
    yield Draft(dict.fromkeys(ins, 0), (0, SUM, SUM))
    yield Draft({**dict.fromkeys(ins, 1), "weight": 0}, (1, 0, 0), most=call["group"])


def _batch_norm(call: Call) -> Iterator[Draft]:
    """By channel; with given statistics also by batch. Tensors of one dimension hold one number per channel, or are empty."""
    channels = call.shape("input")[1]

    def channel(shape: tuple[int, ...]) -> int | None:
        return 1 if len(shape) > 1 else 0 if shape == (channels,) else None

    ins = {name: channel(shape) for name, _, shape in call.tensors}
    outs = tuple(channel(call.out(i)) for i in range(len(call.results)))
    yield Draft(ins, outs)
    if not call.values.get("training", call.values.get("train", False)):
        backward = "grad_out" in call.values
        yield Draft({"input": 0, "grad_out": 0}, (0, *(SUM if backward else None for _ in outs[1:])))


def _cudnn_batch_norm(call: Call) -> Iterator[Draft]:
    """By channel. Of tensors whose channels lie last in memory cuDNN keeps data of its own, which cannot be cut."""
    if call["input"].meta["val"].is_contiguous():
        ins = {name: 1 if len(shape) > 1 else 0 for name, _, shape in call.tensors if name != "reserveSpace"}
        yield Draft(ins, tuple(1 if len(call.out(i)) > 1 else 0 for i in range(len(call.results))))


def _fewer_groups(part: Slice) -> dict[str, Any]:
    """By batch fewer examples, by channel fewer channels and groups."""
    names = ("C", "group") if part.ins["input"] == 1 else ("N",)
    return {name: part.of(part.call[name]) for name in names}


# -- bits of slices ----------------------------------------------------------------------------------------------------
def _contiguous(q: Slicing) -> bool:
    """The slices of contiguous tensors had the bits of the whole."""
    return q.contiguous()


# -- valid arguments: variances are positive, and saved statistics are of the input -------------------------------------
def _positive_variance(x: Given) -> Valid:
    return {} if x.get("running_var") is None else {("running_var", 0): x["running_var"].abs()}


def _saved_by_batch_norm(x: Given) -> Valid:
    made = _positive_variance(x)
    dims = [d for d in range(x["input"].dim()) if d != 1]
    for name, value in (("save_mean", 0), ("save_invstd", 1)):
        if x[name] is not None and x[name].numel():
            var, mean = torch.var_mean(x["input"].to(x[name].dtype), dims, correction=0)
            made[name, 0] = (var + x["eps"]).rsqrt() if value else mean
    return made


def _saved_by_cudnn(x: Given) -> Valid:
    dims = [d for d in range(x["input"].dim()) if d != 1]
    var, mean = torch.var_mean(x["input"].float(), dims, correction=0)
    return {("save_mean", 0): mean, ("save_var", 0): (var + x["epsilon"]).rsqrt()}


def _saved_by_group_norm(x: Given) -> Valid:
    sizes = (x["N"], x["C"], x["HxW"], x["group"], 1e-5)
    _, mean, rstd = aten.native_group_norm(x["input"].contiguous(), None, None, *sizes)
    return {("mean", 0): mean, ("rstd", 0): rstd}


def _saved_by_layer_norm(x: Given) -> Valid:
    _, mean, rstd = aten.native_layer_norm(x["input"], x["normalized_shape"], None, None, 1e-5)
    return {("mean", 0): mean, ("rstd", 0): rstd}


_BATCH_NORM = Operator(
    _batch_norm, dense=True, same_bits=_contiguous, sample=_positive_variance, strides=laid_out_as(0, norm=True)
)
_CUDNN = Operator(_cudnn_batch_norm, dense=True, same_bits=_contiguous, sample=_positive_variance)

OPERATORS = {
    "native_layer_norm": Operator(_layer_norm, same_bits=always),
    "native_layer_norm_backward": Operator(
        _layer_norm_backward, dense=True, same_bits=always, sample=_saved_by_layer_norm, strides=contiguous
    ),
    "_fused_rms_norm": Operator(_layer_norm, same_bits=always),
    "_fused_rms_norm_backward": Operator(_layer_norm_backward),
    "native_group_norm": Operator(_group_norm, _fewer_groups, dense=True),
    "native_group_norm_backward": Operator(
        _group_norm_backward, _fewer_groups, dense=True, sample=_saved_by_group_norm, run=of_dense
    ),
    "native_batch_norm": _BATCH_NORM,
    "_native_batch_norm_legit": _BATCH_NORM,
    "_native_batch_norm_legit_functional": _BATCH_NORM,
    "_native_batch_norm_legit_no_training": replace(_BATCH_NORM, same_bits=None),
    "native_batch_norm_backward": replace(_BATCH_NORM, sample=_saved_by_batch_norm, strides=laid_out_as(1, norm=True)),
    "cudnn_batch_norm": _CUDNN,
    "cudnn_batch_norm_backward": replace(_CUDNN, sample=_saved_by_cudnn),
}
