"""Orders in which each op runs once: one that frees memory early, how far an op may move, and ops put back in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiled import entry, inner


class Regions(NamedTuple):
    """The two ranges of positions within which ops may change places; both numbers are 0 where the order is fixed."""

    first_end: int  # the first range is [0, first_end)
    second_begin: int  # the second range begins here; it ends with the order


@entry
def hoist(order, first, before, graph):
    """int64: `order` with, from position `first` on, every op that frees as much as it makes run as soon as it can.

    before : `Rows`; per op the ops that must run before it.
    graph : `Arrays`.

    So a weight's gradient, which frees an activation, comes before the input's gradient, which makes another one. Among
    several such ops the one that frees most comes first; where there is none, the next in the given order.
    O(n * ops ready at once).
    """
    size, producer, keep = graph.bytes, graph.producer, graph.keep
    in_ptr, in_ids, out_ptr, out_ids = graph.in_ptr, graph.in_ids, graph.out_ptr, graph.out_ids
    before_ptr, before_ids = before.ptr, before.ids
    n = len(order)
    n_ops = len(before_ptr) - 1
    waits = np.zeros(n_ops, np.int64)  # ops that must still run before it
    after_ptr = np.zeros(n_ops + 1, np.int64)
    done = np.zeros(n_ops, np.bool_)
    for i in range(first):
        done[order[i]] = True
    for i in range(first, n):
        o = order[i]
        for j in range(before_ptr[o], before_ptr[o + 1]):
            if not done[before_ids[j]]:
                waits[o] += 1
                after_ptr[before_ids[j] + 1] += 1
    for o in range(n_ops):
        after_ptr[o + 1] += after_ptr[o]
    after_ids = np.empty(after_ptr[n_ops], np.int64)
    fill = after_ptr.copy()
    readers = np.zeros(len(size), np.int64)  # ops that are still to read the value
    for i in range(first, n):
        o = order[i]
        for j in range(before_ptr[o], before_ptr[o + 1]):
            p = before_ids[j]
            if not done[p]:
                after_ids[fill[p]] = o
                fill[p] += 1
        for j in range(in_ptr[o], in_ptr[o + 1]):
            readers[in_ids[j]] += 1
    place = np.zeros(n_ops, np.int64)
    for i in range(n):
        place[order[i]] = i
    ready = np.empty(n, np.int64)
    n_ready = 0
    for i in range(first, n):
        if waits[order[i]] == 0:
            ready[n_ready] = order[i]
            n_ready += 1
    out = order.copy()
    for i in range(first, n):
        best, best_change = -1, 0
        earliest = 0
        for k in range(n_ready):
            o = ready[k]
            if place[o] < place[ready[earliest]]:
                earliest = k
            change = 0
            for j in range(out_ptr[o], out_ptr[o + 1]):
                v = out_ids[j]
                if readers[v] > 0 or keep[v]:
                    change += size[v]
            for j in range(in_ptr[o], in_ptr[o + 1]):
                v = in_ids[j]
                if readers[v] == 1 and not keep[v] and producer[v] >= 0:
                    change -= size[v]
            if change <= 0 and (
                best < 0 or change < best_change or (change == best_change and place[o] < place[ready[best]])
            ):
                best, best_change = k, change
        k = best if best >= 0 else earliest
        o = ready[k]
        n_ready -= 1
        ready[k] = ready[n_ready]
        out[i] = o
        for j in range(in_ptr[o], in_ptr[o + 1]):
            readers[in_ids[j]] -= 1
        for j in range(after_ptr[o], after_ptr[o + 1]):
            q = after_ids[j]
            waits[q] -= 1
            if waits[q] == 0:
                ready[n_ready] = q
                n_ready += 1
    return out


@inner
def leeway(order, at, low, high, before):
    """(first, last) position to which the op at position `at` may move, within [low, high).

    before : as in `hoist`.
    """
    before_ptr, before_ids = before.ptr, before.ids
    o = order[at]
    first = at
    while first > low:
        p = order[first - 1]
        for j in range(before_ptr[o], before_ptr[o + 1]):
            if before_ids[j] == p:
                break
        else:
            first -= 1
            continue
        break
    last = at
    while last + 1 < high:
        q = order[last + 1]
        for j in range(before_ptr[q], before_ptr[q + 1]):
            if before_ids[j] == o:
                break
        else:
            last += 1
            continue
        break
    return first, last


@inner
def move(order, source, target):
    """Move the op at position `source` to position `target`, in place."""
    o = order[source]
    step = 1 if target > source else -1
    i = source
    while i != target:
        order[i] = order[i + step]
        i += step
    order[target] = o


@entry
def whole(runs, ops, second_begin, boundary, waits, after, out):
    """Put the ops that a reduced problem leaves out back into a sequence of its runs; how many runs are in `out` then.

    runs : int64, ids of the reduced problem.
    ops : the graph's id of each op of the reduced problem.
    second_begin : the first op of the reduced problem behind the end of forward. boundary : the boundary's id there, or -1.
    waits : int64 [graph ops]; how many ops a left-out op waits for, one more if it must wait for the end of forward; -1
        for ops that are not left out. Changed.
    after : `Rows`; per graph op the left-out ops that wait for it; in the last row those that wait for the end of forward.

    Each left-out op runs as soon as it can.
    """
    n_ops = len(waits)
    ran = np.zeros(n_ops, np.bool_)
    released = False
    m = 0
    for o in range(n_ops):
        if waits[o] == 0:
            out[m] = o
            m += 1
    m = _follow(out, 0, m, ran, waits, after)
    for i in range(len(runs)):
        if not released and (runs[i] >= second_begin or (i > 0 and runs[i - 1] == boundary)):
            released = True
            m = _follow(out, m, _free(n_ops, out, m, waits, after), ran, waits, after)
        out[m] = ops[runs[i]]
        m = _follow(out, m, m + 1, ran, waits, after)
    return m


@inner
def _free(o, out, m, waits, after):
    """Append to out[:m] the ops that waited for o alone; the new m."""
    for j in range(after.ptr[o], after.ptr[o + 1]):
        q = after.ids[j]
        waits[q] -= 1
        if waits[q] == 0:
            out[m] = q
            m += 1
    return m


@inner
def _follow(out, done, m, ran, waits, after):
    """Append the ops that out[done:m] let run by running for the first time, and so on; the new m."""
    while done < m:
        o = out[done]
        done += 1
        if not ran[o]:
            ran[o] = True
            m = _free(o, out, m, waits, after)
    return m
