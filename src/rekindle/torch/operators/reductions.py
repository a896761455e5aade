"""Reductions, softmaxes and other ops along one dimension, and ops that choose elements by comparing them: one record each."""

from __future__ import annotations

from typing import Any

import torch

from .corrected import over_rows
from .cut_call import SUM, Call, Draft, Slicing, others
from .record import BY_ELEMENT, BY_ROW, Operator, Sample
from .strides import contiguous, contiguous_if_open

aten = torch.ops.aten


def _reduction(call: Call) -> list[Draft]:
    """At the dimensions that stay; of several results, all have the same shape."""
    shape, gone = call.shape("self"), call.dims()
    keeps = bool(call.values.get("keepdim"))
    kept = [d for d in range(len(shape)) if d not in gone]
    return [Draft({"self": d}, (d if keeps else i,) * len(call.results)) for i, d in enumerate(kept)]


def _sum(call: Call) -> list[Draft]:
    """Also at the dimensions that go: a sum of the slices' sums."""
    return _reduction(call) + [Draft({"self": d}, (SUM,)) for d in call.dims()]


def _last_dimension(q: Slicing) -> bool:
    """Along the last dimension, of contiguous tensors."""
    (dim,) = q.call.dims()
    return dim == len(q.call.out()) - 1 and q.contiguous()


def _results_of(softmax: Any) -> Sample:
    return lambda x: {("output", 0): softmax(x["output"], x["dim"], False)}


OPERATORS = {
    "sum": Operator(_sum, vectors=BY_ROW),
    "nansum": Operator(_sum, vectors=BY_ROW),
    "count_nonzero": Operator(_sum),
    **dict.fromkeys(
        ("mean", "prod", "logsumexp", "linalg_vector_norm", "norm", "var", "std", "var_mean", "std_mean"),
        Operator(_reduction, vectors=BY_ROW),
    ),
    **dict.fromkeys(("amax", "amin", "max", "min", "argmax", "argmin", "any", "all"), Operator(_reduction)),
    "_softmax": Operator(others, same_bits=_last_dimension, vectors=BY_ROW, over=over_rows("_softmax")),
    "_softmax_backward_data": Operator(
        others, same_bits=_last_dimension, vectors=BY_ROW, sample=_results_of(aten._softmax),
        over=over_rows("_softmax_backward_data", "grad_input"),
    ),
    "_log_softmax": Operator(
        others, same_bits=_last_dimension, vectors=BY_ROW, strides=contiguous_if_open(0), over=over_rows("_log_softmax")
    ),
    "_log_softmax_backward_data": Operator(
        others, same_bits=_last_dimension, vectors=BY_ROW, sample=_results_of(aten._log_softmax), strides=contiguous,
        over=over_rows("_log_softmax_backward_data"),
    ),
    "_safe_softmax": Operator(others, vectors=BY_ROW),
    "cumsum": Operator(others, vectors=BY_ROW),
    "cumprod": Operator(others, vectors=BY_ROW),
    "glu": Operator(others, vectors=BY_ELEMENT),
    "glu_backward": Operator(others, vectors=BY_ELEMENT, strides=contiguous),
    "sort": Operator(others, selects=True),
    "topk": Operator(others, selects=True),
    **dict.fromkeys(
        ("argsort", "nonzero", "unique", "_unique2", "unique_dim", "unique_consecutive", "kthvalue", "mode", "median",
         "_local_scalar_dense", "multinomial", "histc", "bincount", "masked_select"), Operator(selects=True),
    ),
}  # fmt: skip
