"""Parts of a graph with ids of their own."""

from __future__ import annotations

import numpy as np

from .compiled import entry


@entry
def localise(ops, in_ptr, in_ids, out_ptr, out_ids, over_ptr, over_ids, place):
    """(values, wiring): the values that `ops` touch, in order of first touch, and all that they read, make and may write
    over, in places in `values`, with the number before each row. place : int64 [values], all -1; so it is left."""
    total = 3 * len(ops)
    for o in ops:
        total += in_ptr[o + 1] - in_ptr[o] + out_ptr[o + 1] - out_ptr[o] + over_ptr[o + 1] - over_ptr[o]
    values, wiring = np.empty(total, np.int64), np.empty(total, np.int64)
    n = m = 0
    for o in ops:
        for ptr, ids in ((in_ptr, in_ids), (out_ptr, out_ids), (over_ptr, over_ids)):
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
    place[values[:n]] = -1
    return values[:n], wiring


@entry
def rows(wiring, count):
    """(ptr, ids) for each of the three kinds of rows in the `wiring` of `count` ops."""
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
def missing(runs, wanted, in_ptr, in_ids, out_ptr, out_ids):
    """Turns `wanted` (bool [values], to be there after `runs`) into what must be there before them. In place."""
    for s in range(len(runs) - 1, -1, -1):
        o = runs[s]
        for j in range(out_ptr[o], out_ptr[o + 1]):
            wanted[out_ids[j]] = False
        for j in range(in_ptr[o], in_ptr[o + 1]):
            wanted[in_ids[j]] = True
