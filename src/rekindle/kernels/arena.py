"""Lives of storages over a schedule, and offsets for them in one block of memory."""

from __future__ import annotations

import numpy as np

from .arrays import FETCH, FREE, OFFLOAD, RUN
from .compiled import entry


@entry
def lives(steps, graph):
    """int64 [lives, 4] rows (first step, last step, bytes, value; -1: workspace) of a valid schedule.

    Every production and every fetch starts a life, except a first output written over an input: it continues the input's life,
    which keeps its size. A second copy of a live value lives for one step, and so does workspace.
    """
    size = graph.bytes
    out_ptr, out_ids = graph.out_ptr, graph.out_ids
    workspace = graph.workspace
    cap = 0
    for s in range(len(steps)):
        if steps[s, 0] == RUN:
            o = steps[s, 1]
            cap += out_ptr[o + 1] - out_ptr[o] + 1
        elif steps[s, 0] == FETCH:
            cap += 1
    rows = np.empty((cap, 4), np.int64)
    at = np.full(len(size), -1, np.int64)  # the life of each live value
    m = 0
    for s in range(len(steps)):
        i = steps[s, 1]
        if steps[s, 0] == FREE:
            rows[at[i], 1] = s - 1
            at[i] = -1
            continue
        if steps[s, 0] == OFFLOAD:
            continue
        if steps[s, 0] == FETCH:
            rows[m, 0], rows[m, 1], rows[m, 2], rows[m, 3] = s, s, size[i], i
            at[i] = m
            m += 1
            continue
        into = steps[s, 2]
        for j in range(out_ptr[i], out_ptr[i + 1]):
            v = out_ids[j]
            if into >= 0 and j == out_ptr[i]:
                life = at[into]
                at[into] = -1
                if at[v] < 0:
                    at[v] = life
                else:
                    rows[life, 1] = s
                continue
            rows[m, 0], rows[m, 1], rows[m, 2], rows[m, 3] = s, s, size[v], v
            if at[v] < 0:
                at[v] = m
            m += 1
        if workspace[i] > 0:
            rows[m, 0], rows[m, 1], rows[m, 2], rows[m, 3] = s, s, workspace[i], -1
            m += 1
    for v in range(len(size)):
        if at[v] >= 0:
            rows[at[v], 1] = len(steps) - 1
    return rows[:m]


@entry
def place(order, first, last, size, offsets):
    """Bytes of the block when lives are placed one by one, in `order`, each at the lowest offset where it fits among those
    placed before that live at the same time; writes `offsets`. O(lives^2)."""
    top = 0
    by_offset = np.empty(len(order), np.int64)  # lives placed so far
    n = 0
    for k in range(len(order)):
        i = order[k]
        a, b, need = first[i], last[i], size[i]
        at = 0
        for q in range(n):
            j = by_offset[q]
            if first[j] > b or last[j] < a:
                continue
            if offsets[j] - at >= need:
                break
            at = max(at, offsets[j] + size[j])
        offsets[i] = at
        top = max(top, at + need)
        q = n
        while q > 0 and offsets[by_offset[q - 1]] > at:
            by_offset[q] = by_offset[q - 1]
            q -= 1
        by_offset[q] = i
        n += 1
    return top
