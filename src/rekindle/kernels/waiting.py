"""The ops that depend on an op, and knapsacks over the values that wait while one runs for the first time."""

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


@entry
def rows(v, needed, weights, graph):
    """(cost, bytes) float64 [rows], one per op: values that in every schedule are made before the first run of op v
    and read after it (or kept), beside v's own inputs and outputs, and what one run of the op that makes them costs.
    Ids are in a valid order, so one scan down finds what comes before v, and one up what comes after. O(edges)."""
    size, producer, keep = graph.bytes, graph.producer, graph.keep
    in_ptr, in_ids, out_ptr, out_ids = graph.in_ptr, graph.in_ids, graph.out_ptr, graph.out_ids
    workspace, recompute = graph.workspace, graph.recompute
    n = len(workspace)
    before = np.zeros(n, np.bool_)
    after = np.zeros(n, np.bool_)
    waits = keep.copy()
    before[v] = True
    after[v] = True
    for i in range(v, -1, -1):
        if before[i]:
            for j in range(in_ptr[i], in_ptr[i + 1]):
                if producer[in_ids[j]] >= 0:
                    before[producer[in_ids[j]]] = True
    for i in range(v + 1, n):
        for j in range(in_ptr[i], in_ptr[i + 1]):
            p = producer[in_ids[j]]
            if p >= 0 and after[p]:
                after[i] = True
        if after[i] and needed[i]:
            for j in range(in_ptr[i], in_ptr[i + 1]):
                waits[in_ids[j]] = True
    for j in range(in_ptr[v], in_ptr[v + 1]):
        waits[in_ids[j]] = False
    cost = np.empty(v + 1)
    held = np.empty(v + 1)
    m = 0
    for i in range(v):
        if not before[i]:
            continue
        total = 0
        for j in range(out_ptr[i], out_ptr[i + 1]):
            if waits[out_ids[j]]:
                total += size[out_ids[j]]
        if total > 0:
            cost[m] = weights[i] if recompute[i] else np.inf
            held[m] = total
            m += 1
    return cost[:m], held[:m]


@entry
def least_waiting(cost, held, extras):
    """For each of `extras` the least bytes that still wait when it is spent on making rows again, which come in order of cost
    per byte: a knapsack, relaxed to fractions."""
    found = np.empty(len(extras))
    for k in range(len(extras)):
        waiting, extra = 0.0, extras[k]
        for i in range(len(held)):
            waiting += held[i]
        for i in range(len(cost)):
            if cost[i] > extra:
                if cost[i] < np.inf:
                    waiting -= held[i] * extra / cost[i]
                break
            waiting -= held[i]
            extra -= cost[i]
        found[k] = max(0.0, waiting)
    return found


@entry
def least_cost(cost, held, excesses):
    """For each of `excesses` the least cost of making rows again, in order of cost per byte, that hold so many bytes, relaxed
    to fractions; infinite where none do."""
    found = np.zeros(len(excesses))
    for k in range(len(excesses)):
        excess = excesses[k]
        for i in range(len(cost)):
            if excess <= 0:
                break
            found[k] += cost[i] * min(1.0, excess / held[i])
            excess -= held[i]
        if excess > 0:
            found[k] = np.inf
    return found
