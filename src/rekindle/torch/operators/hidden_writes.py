"""Writes that an op's schema does not declare: cuDNN's batch norm writes its running statistics.

While tracing, torch replaces it by another kernel with other bits. Here it is captured as eager calls it, if its running
statistics have no other reader; `lowering.writes` then lets only its first run write them. If they have other readers (a
layer that runs twice, or an instance norm, which gives the kernel copies), it is captured as an operator of ours that returns
the new statistics.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import fx

from .record import OwnOp, define

aten = torch.ops.aten
BATCH_NORM = aten.cudnn_batch_norm.default  # (input, weight, bias, mean, variance, training, momentum, eps)
# Both save the statistics for a backward that does not read them. Their writes leave the version of a tensor as it is.
BATCH_NORMS = (BATCH_NORM, aten.native_batch_norm.default)
BACKWARD = aten.cudnn_batch_norm_backward.default  # (input, gradient, weight, mean, …): reads neither mean nor variance
STATISTICS, TRAINING = (3, 4), 5  # positions among the arguments


def writes(op: Any, args: Any) -> bool:
    """Whether a call writes running statistics without declaring it."""
    return op is BATCH_NORM and bool(args[TRAINING]) and any(args[i] is not None for i in STATISTICS)


def declared(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> Any:
    """The results of a call of the batch norm, whose writes are those of `copy_`."""
    *results, new_mean, new_variance = _WITH_STATISTICS(x, weight, bias, mean, variance, momentum, eps)
    mean.copy_(new_mean)
    variance.copy_(new_variance)
    return tuple(results)


def _with_statistics(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float) -> Any:
    """(result, saved mean, saved variance, reserve, new running mean, new running variance) of a batch norm in training."""
    new_mean, new_variance = mean.clone(), variance.clone()
    return *BATCH_NORM(x, weight, bias, new_mean, new_variance, True, momentum, eps), new_mean, new_variance


_WITH_STATISTICS = define(
    "cudnn_batch_norm(Tensor x, Tensor weight, Tensor? bias, Tensor mean, Tensor variance, float momentum, float eps)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    OwnOp(run=_with_statistics, fake=_with_statistics, workspace=lambda *_: 0),
)


def is_safe(graph: fx.Graph, called: int) -> bool:
    """Whether hidden writes are harmless: only the op and its backward read the tensor, which is a whole placeholder.

    called : how often forward called such kernels; the graph lacks calls whose results are not used.
    """
    nodes = [n for n in graph.nodes if writes(n.target, n.args)]
    at = Counter(_storage(p) for p in graph.nodes if p.op == "placeholder")
    return len(nodes) == called and all(_by_it_alone(n, at) for n in nodes)


def _by_it_alone(n: fx.Node, at: Counter[Any]) -> bool:
    taken: list[Any] = [n.args[i] for i in STATISTICS]
    return all(
        isinstance(p, fx.Node) and p.op == "placeholder" and taken.count(p) == 1 and at[_storage(p)] == 1
        and all(u is n or u.target is BACKWARD for u in p.users)
        for p in taken
    )  # fmt: skip


def _storage(p: fx.Node) -> Any:
    t = p.meta.get("val")
    return t.untyped_storage()._cdata if isinstance(t, torch.Tensor) else p
