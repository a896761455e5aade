"""The ops that depend on an op."""

from __future__ import annotations

import numpy as np

from .compiled import entry


@entry
def depends(q, graph):
    """bool [ops]: op q, and every op that reads what it makes or what is made from that. O(edges after q)."""
    producer, in_ptr, in_ids = graph.producer, graph.in_ptr, graph.in_ids
    after = np.zeros(len(in_ptr) - 1, np.bool_)
    after[q] = True
    for i in range(q + 1, len(after)):
        for j in range(in_ptr[i], in_ptr[i + 1]):
            p = producer[in_ids[j]]
            if p >= 0 and after[p]:
                after[i] = True
                break
    return after
