"""Whether a step talks to other processes."""

from __future__ import annotations

import torch

from ...model.graph import Graph


def communicates(graph: Graph) -> bool:
    """Whether a step talks to other processes, which would not answer if this process alone ran it once more."""
    return any("c10d" in op.target for op in graph.ops) and torch.distributed.is_available()
