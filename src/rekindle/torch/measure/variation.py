"""How far the gradients of plain steps are from each other, where fused attention adds up in another order in every step.

On a GPU the backward of fused attention in long sequences does, even where deterministic kernels are preferred: it is
deterministic only with `torch.use_deterministic_algorithms(True)`, under which every op without a deterministic kernel raises.
A planned step cannot have the bits of a plain one then. It is compared with plain steps by how far these are from each other.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Collection, Mapping

import torch

from ...model.graph import Graph
from ..operators.node_tensors import tensors_of
from ..rewrite.closeness import difference, epsilon, least_scale
from ..trace import Trace
from .as_before import same

log = logging.getLogger(__name__)
Gradients = Mapping[str, torch.Tensor | None]


PLAIN_STEPS = 2  # that are run again; a guess
TIMES_AS_FAR = 8.0  # a gradient may be so many times as far from the plain step's as other plain steps' are; a guess
# No gradient may be farther than this share of the largest element where all is computed in float32, and than so many roundings
# of a coarser type where one is used. Guesses.
EXACT_MOST_SHARE = 3e-4
ROUNDINGS_MOST = 8.0
# Backward ops of PyTorch whose kernels for a GPU add up by atomic additions.
_VARYING = ("_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_efficient_attention_backward",
            "_scaled_dot_product_cudnn_attention_backward", "_flash_attention_backward", "_efficient_attention_backward",
            "_cudnn_attention_backward")  # fmt: skip
_DEVICES = ("cuda",)


def allowed(step: Trace, theirs: Gradients, wrong: Collection[str], again: Callable[[], Gradients]) -> dict[str, float]:
    """Name of a gradient -> how far it may be from the plain step's, as `closeness.difference` measures it with `least_scale`.

    Gradients that are the same in every plain step are left out. The result is {} for a step without fused attention, and for
    a step in which processes communicate: all of them would have to run as many plain steps.

    theirs : the plain step's gradients. wrong : the names that are asked for. again : runs one more plain step, and gives its
    gradients.
    """
    if not _varies(step) or communicates(step.graph):
        return {}
    least, seen = least_scale(theirs.values()), dict[str, float]()
    try:
        for _ in range(PLAIN_STEPS):
            now = again()
            for k, t in theirs.items():
                other = now.get(k)
                if t is not None and other is not None and not same(other, t):
                    seen[k] = max(seen.get(k, 0.0), difference(other, t, least))
    except torch.OutOfMemoryError:
        log.debug("no memory for another plain step beside the gradients that are compared")
        return {}
    usual, most = statistics.median(seen.values()) if seen else 0.0, _most(step)
    return {k: min(most, TIMES_AS_FAR * max(seen[k], usual)) for k in wrong if k in seen}


def communicates(graph: Graph) -> bool:
    """Whether a step talks to other processes, which would not answer if this process alone ran it once more."""
    return any("c10d" in op.target for op in graph.ops) and torch.distributed.is_available()


def _varies(step: Trace) -> bool:
    """Whether fused attention is among the ops of the step on a device where it varies."""
    return any(
        str(n.target).removeprefix("aten.").partition(".")[0] in _VARYING
        and any(t.device.type in _DEVICES for _, t in tensors_of(n))
        for n in step.lowered.captured.nodes
    )  # fmt: skip


def _most(step: Trace) -> float:
    """How far rounding in another order may move a gradient, by the coarsest type in which the step computes."""
    kinds = (t for n in step.lowered.captured.nodes for _, t in tensors_of(n) if t.is_floating_point())
    return max(EXACT_MOST_SHARE, ROUNDINGS_MOST * max(map(epsilon, kinds), default=0.0))
