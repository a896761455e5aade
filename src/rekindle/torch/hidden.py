"""Kernels that write to their arguments although their schema does not say so: cuDNN's batch norm.

torch takes another kernel for it while tracing, whose bits are not eager's. Here it is captured as eager calls it, where
its running statistics have no other reader; `in_place` then lets its first run alone write them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
BATCH_NORM = aten.cudnn_batch_norm.default  # (input, weight, bias, mean, variance, training, momentum, eps)
BACKWARD = aten.cudnn_batch_norm_backward.default  # (input, gradient, weight, mean, variance, …): reads neither of them
STATISTICS, TRAINING = (3, 4), 5  # positions


def writes(n: fx.Node) -> bool:
    """Whether the node writes running statistics that its schema does not admit to."""
    return n.target is BATCH_NORM and bool(n.args[TRAINING]) and any(n.args[i] is not None for i in STATISTICS)


def is_safe(graph: fx.Graph) -> bool:
    """Whether whatever is written so is a tensor of the caller's that only that op reads, and its backward."""
    return all(_by_it_alone(n) for n in graph.nodes if writes(n))


def _by_it_alone(n: fx.Node) -> bool:
    taken: list[Any] = [n.args[i] for i in STATISTICS]
    return all(
        isinstance(p, fx.Node) and p.op == "placeholder" and taken.count(p) == 1
        and all(u is n or u.target is BACKWARD for u in p.users)
        for p in taken
    )  # fmt: skip
