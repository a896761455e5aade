"""Leave useless runs out of a sequence: one sweep forward, one backward."""

from __future__ import annotations

import numpy as np

from .compiled import entry


@entry
def prune(runs, graph):
    """int64: `runs` without repeats of ops that must not run twice, and without runs none of whose outputs is live
    afterwards. O(runs + edges).

    graph : `Arrays`. Only `recompute`, `keep`, `producer`, inputs and outputs are read; a caller may replace the first
        three to ask for the needs of a part of the graph.
    """
    in_ptr, in_ids, out_ptr, out_ids = graph.in_ptr, graph.in_ids, graph.out_ptr, graph.out_ids
    producer, recompute = graph.producer, graph.recompute
    m = len(runs)
    useful = np.ones(m, np.bool_)
    seen = np.zeros(len(recompute), np.bool_)
    for s in range(m):
        o = runs[s]
        useful[s] = recompute[o] or not seen[o]
        seen[o] = True
    live = graph.keep.copy()
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
    count = 0
    for s in range(m):
        if useful[s]:
            count += 1
    kept = np.empty(count, np.int64)
    count = 0
    for s in range(m):
        if useful[s]:
            kept[count] = runs[s]
            count += 1
    return kept
