"""A budget in bytes is kept: what a step takes that its graph does not count, and a measured step that says so."""

from __future__ import annotations

from . import rules
from .normalise import tensors_of
from .trace import Trace

BLOCK = 512  # bytes of the smallest block that CUDA's allocator gives, to a scalar too
SCALARS = 4  # at once: the loss and its gradient, and two more while a loss is added up from several results
GENERATOR = 5056  # bytes of the state of the CPU's generator, which is read where a random op runs again


def bookkeeping(trace: Trace) -> int:
    """Bytes that a step may take beside the storages of its graph. The tokens between stages are empty."""
    nodes = [c.node for c in trace.lowered.calls if c.node is not None and rules.draws_random(c.node.target)]
    on_cpu = any(t.device.type == "cpu" for n in nodes for _, t in tensors_of(n))
    return BLOCK * SCALARS + (GENERATOR if on_cpu else 0)
