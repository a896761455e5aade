"""The dynamic programme over chains of lower sets."""

from __future__ import annotations

import numpy as np

from .compiled import entry

NONE = 2**62


@entry
def cheapest_chains(budget, levels, subset, held, work, again):
    """(bytes int64 [sets, levels + 1], before int32 of the same shape), per set and per time of recomputation.

    bytes : the least that a chain of lower sets saves which ends in the set and recomputes for that time. before : the
    set before it in that chain.

    Sets come in order of size, the empty one first, the whole one last. For a set i within a set j
    held[i, j] : further bytes saved.
    work[i, j] : bytes that the backward of the block between takes, beside the bytes saved before it; together within
        the budget.
    again[i, j] : the time of the recomputation.
    """
    n = len(subset)
    kept = np.full((n, levels + 1), NONE, np.int64)
    before = np.full((n, levels + 1), -1, np.int32)
    kept[0, 0] = 0
    for i in range(n):
        for j in range(i + 1, n):
            if not subset[i, j] or work[i, j] > budget:
                continue
            for t in range(levels + 1 - again[i, j]):
                if kept[i, t] + work[i, j] > budget:
                    continue
                x = kept[i, t] + held[i, j]
                if x < kept[j, t + again[i, j]]:
                    kept[j, t + again[i, j]] = x
                    before[j, t + again[i, j]] = i
    return kept, before
