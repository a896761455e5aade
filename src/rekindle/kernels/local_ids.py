"""A few ops of a graph, with the values that they touch numbered from 0: for blocks and stages that are looked at alone."""

from __future__ import annotations

import numpy as np

from .compiled import entry


@entry
def localise(ops, graph, place):
    """Number the values that `ops` touch, in the order of first touch.

    graph : `Arrays`.
    place : int64 [values of the graph], all -1; used as scratch and left as it was.

    Returns (values, wiring). values : int64, the graph's id of each local value. wiring : int64; for each op its inputs,
    outputs and the inputs that it may write over, as local ids, each row with its length in front.
    """
    total = 3 * len(ops)
    for o in ops:
        total += graph.in_ptr[o + 1] - graph.in_ptr[o] + graph.out_ptr[o + 1] - graph.out_ptr[o]
        total += graph.inplace_ptr[o + 1] - graph.inplace_ptr[o]
    values, wiring = np.empty(total, np.int64), np.empty(total, np.int64)
    n = m = 0
    for o in ops:
        for ptr, ids in (
            (graph.in_ptr, graph.in_ids),
            (graph.out_ptr, graph.out_ids),
            (graph.inplace_ptr, graph.inplace_ids),
        ):
            wiring[m] = ptr[o + 1] - ptr[o]
            m += 1
            for j in range(ptr[o], ptr[o + 1]):
                v = ids[j]
                if place[v] < 0:
                    place[v] = n
                    values[n] = v
                    n += 1
                wiring[m] = place[v]
                m += 1
    for k in range(n):
        place[values[k]] = -1
    return values[:n], wiring


@entry
def rows(wiring, count):
    """Take the `wiring` of `count` ops apart: (ptr int64 [3, ops + 1], ids int64 [3, ...]), compressed rows of inputs,
    outputs and inputs that may be written over."""
    ptr = np.zeros((3, count + 1), np.int64)
    ids = np.empty((3, len(wiring)), np.int64)
    m = 0
    for o in range(count):
        for kind in range(3):
            length, begin = wiring[m], ptr[kind, o]
            for k in range(length):  # as a slice it takes numba two seconds longer to compile
                ids[kind, begin + k] = wiring[m + 1 + k]
            ptr[kind, o + 1] = begin + length
            m += 1 + length
    return ptr, ids


@entry
def missing(runs, wanted, graph):
    """Turn `wanted` (bool [values]: needed after `runs`) into the values needed before them. In place."""
    for s in range(len(runs) - 1, -1, -1):
        o = runs[s]
        for j in range(graph.out_ptr[o], graph.out_ptr[o + 1]):
            wanted[graph.out_ids[j]] = False
        for j in range(graph.in_ptr[o], graph.in_ptr[o + 1]):
            wanted[graph.in_ids[j]] = True
