"""Sequences of runs, before it is decided when values are freed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..kernels import liveness as kernel
from ..model.graph import Graph


def prune(graph: Graph, runs: Iterable[int]) -> list[int]:
    """`runs` (op ids) without the useless ones: a run none of whose outputs is read before it is produced again, nor
    kept at the end; and a repeat of an op that must not run twice, whose first run stays.

    Where every run finds its inputs made before it, it still does in the result. O(runs + edges).
    """
    return kernel.prune(np.fromiter(runs, np.int64), graph.arrays).tolist()


def making(graph: Graph, ops: np.ndarray, wanted: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The part of `ops` (int64, in order) that makes the values `wanted` where the values `kept` are there already; both
    bool [values]."""
    a = graph.arrays
    asked = a._replace(
        producer=np.where(kept, -1, a.producer), recompute=np.ones(len(a.recompute), np.bool_), keep=wanted & ~kept
    )
    return kernel.prune(ops, asked)
