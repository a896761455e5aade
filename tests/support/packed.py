"""The annealer's problem of a whole graph: all ops, and all values that ops make."""

from __future__ import annotations

import numpy as np

from rekindle.kernels import slots
from rekindle.kernels.arrays import Arrays, compressed_rows
from rekindle.model.graph import Graph


def packed(graph: Graph) -> slots.Ops:
    """The graph without its inputs, as `kernels.sequence` takes it."""
    a = graph.arrays
    ids = np.flatnonzero(a.producer >= 0)
    new = np.full(len(a.bytes), -1, np.int64)
    new[ids] = np.arange(len(ids))

    def made(values: tuple[int, ...]) -> list[int]:
        return [int(new[v]) for v in dict.fromkeys(values) if new[v] >= 0]

    before = [sorted({int(a.producer[v]) for v in o.inputs if a.producer[v] >= 0}) for o in graph.ops]
    arrays = Arrays(
        a.bytes[ids], a.producer[ids], *compressed_rows([made(o.inputs) for o in graph.ops]),
        *compressed_rows([made(o.outputs) for o in graph.ops]), *compressed_rows([made(o.inplace) for o in graph.ops]),
        a.workspace, a.recompute, a.keep[ids], a.boundary,
    )  # fmt: skip
    return slots.pack(arrays, graph.weights(), graph.shared[ids], compressed_rows(before))
