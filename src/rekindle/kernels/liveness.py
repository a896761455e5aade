"""When values live in a sequence of runs: useless runs are left out, and frees put in."""

from __future__ import annotations

import numpy as np

from .arrays import FREE, RUN
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


@entry
def lower(runs, inplace, shared, graph):
    """int64 [steps, 3] rows (kind, id, into): the runs, and each value freed right after its last use.

    One backward scan: a value is live before a run if the run reads it, or if it was live after the
    run and the run does not produce it. Every run of a value's op starts a new
    life, so no value is held until it is recomputed. O(runs + edges).

    shared : bool [values]; as `Graph.shared`: values over which nothing is written.
    """
    size, producer, keep = graph.bytes, graph.producer, graph.keep
    in_ptr, in_ids, out_ptr, out_ids = graph.in_ptr, graph.in_ids, graph.out_ptr, graph.out_ids
    inp_ptr, inp_ids = graph.inplace_ptr, graph.inplace_ids
    n_steps = len(runs)
    # Frees per run, in the order met; a run frees at most its inputs and outputs.
    cap = 0
    for s in range(n_steps):
        o = runs[s]
        cap += in_ptr[o + 1] - in_ptr[o] + out_ptr[o + 1] - out_ptr[o]
    free_ptr = np.zeros(n_steps + 1, np.int64)
    free_ids = np.empty(cap, np.int64)
    live = keep.copy()
    m = 0
    for s in range(n_steps - 1, -1, -1):
        o = runs[s]
        for j in range(out_ptr[o], out_ptr[o + 1]):
            v = out_ids[j]
            if not live[v]:
                free_ids[m] = v
                m += 1
            live[v] = False
        for j in range(in_ptr[o], in_ptr[o + 1]):
            v = in_ids[j]
            if producer[v] >= 0 and not live[v]:
                free_ids[m] = v
                m += 1
                live[v] = True
        free_ptr[s] = m  # frees of run s lie in [free_ptr[s + 1], free_ptr[s])
    # Forward pass: emit, choosing `into` where an input dies and may be overwritten.
    rows = np.empty((n_steps + m, 3), np.int64)
    k = 0
    for s in range(n_steps):
        o = runs[s]
        lo = free_ptr[s + 1] if s + 1 < n_steps else 0
        hi = free_ptr[s]
        into = -1
        if inplace and inp_ptr[o + 1] > inp_ptr[o]:
            first = out_ids[out_ptr[o]]
            arrives_dead = False
            for j in range(lo, hi):
                if free_ids[j] == first:
                    arrives_dead = True
            if not arrives_dead:
                for q in range(inp_ptr[o], inp_ptr[o + 1]):
                    v = inp_ids[q]
                    if into >= 0 or producer[v] < 0 or shared[v] or size[v] < size[first]:
                        continue
                    for j in range(lo, hi):
                        if free_ids[j] == v:
                            into = v
        rows[k, 0] = RUN
        rows[k, 1] = o
        rows[k, 2] = into
        k += 1
        for j in range(lo, hi):
            if free_ids[j] != into:
                rows[k, 0] = FREE
                rows[k, 1] = free_ids[j]
                rows[k, 2] = -1
                k += 1
    return rows[:k]
