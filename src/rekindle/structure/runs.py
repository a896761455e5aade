"""Sequences of runs, before anything is said of when values end."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..kernels import runs as kernel
from ..model.graph import Graph


def prune(graph: Graph, runs: Iterable[int]) -> list[int]:
    """`runs` (op ids) without the useless ones: a run none of whose outputs is read before it is produced again, nor
    kept at the end; and a repeat of an op that must not run twice, whose first run stays.

    Where every run finds its inputs made before it, it still does in the result. O(runs + edges).
    """
    a = graph.arrays
    sequence = np.fromiter(runs, np.int64)
    return kernel.prune(
        sequence, a.producer, a.in_ptr, a.in_ids, a.out_ptr, a.out_ids, a.recompute, a.keep
    ).tolist()  # fmt: skip
