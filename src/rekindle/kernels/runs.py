"""Useless runs, found in one sweep each way."""

from __future__ import annotations

import numpy as np

from .compiled import entry


@entry
def prune(runs, producer, in_ptr, in_ids, out_ptr, out_ids, recompute, keep):
    """int64: `runs` without repeats of ops that must not run twice, and without runs none of whose outputs is live
    afterwards. O(runs + edges)."""
    m = len(runs)
    useful = np.ones(m, np.bool_)
    seen = np.zeros(len(recompute), np.bool_)
    for s in range(m):
        o = runs[s]
        useful[s] = recompute[o] or not seen[o]
        seen[o] = True
    live = keep.copy()
    for s in range(m - 1, -1, -1):
        if not useful[s]:
            continue
        o = runs[s]
        read = False
        for j in range(out_ptr[o], out_ptr[o + 1]):
            if live[out_ids[j]]:
                read = True
                live[out_ids[j]] = False
        useful[s] = read
        if read:
            for j in range(in_ptr[o], in_ptr[o + 1]):
                if producer[in_ids[j]] >= 0:
                    live[in_ids[j]] = True
    return runs[useful]
