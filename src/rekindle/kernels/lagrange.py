"""Each value by itself: kept from stage to stage at the price of memory, or made again at the price of a run."""

from __future__ import annotations

import numba as nb
import numpy as np


@nb.njit(cache=True)
def needs(path, needed, size, producer, in_ptr, in_ids, out_ptr, out_ids, inp_ptr, inp_ids, workspace, recompute, keep,
          boundary):  # fmt: skip
    """(since int16 [values, K + 3], read bool [values, K + 2]) for a path of K ops; stages and path count from 1.

    The first run of an op lies in a window of stages: after all ops of the path that it depends on, and not after the
    stage that ends with one that depends on it. There its inputs are present (live when the stage began, or made in
    it), and so are its outputs then. since[v, e]: value v must have been present in that stage or later, before stage
    e; 0: nowhere yet. read[v, k]: op k of the path reads v. O(edges + values K).
    """
    stages = len(path) + 1
    place = np.zeros(len(workspace), np.int16)
    for k in range(len(path)):
        place[path[k]] = k + 1
    early = np.ones(len(workspace), np.int16)
    late = np.full(len(workspace), stages, np.int16)
    for i in range(len(workspace)):
        for j in range(in_ptr[i], in_ptr[i + 1]):
            p = producer[in_ids[j]]
            if p >= 0:
                early[i] = max(early[i], place[p] + 1 if place[p] else early[p])
    since = np.zeros((len(size), stages + 2), np.int16)
    read = np.zeros((len(size), stages + 1), np.bool_)
    for i in range(len(workspace) - 1, -1, -1):
        if not needed[i]:
            continue
        if place[i]:
            late[i] = place[i]
        for j in range(in_ptr[i], in_ptr[i + 1]):
            v = in_ids[j]
            if producer[v] >= 0:
                late[producer[v]] = min(late[producer[v]], late[i])
                since[v, late[i] + 1] = max(since[v, late[i] + 1], early[i])
                read[v, place[i]] = True
        # What an op of the path makes is there from the next stage on.
        there = place[i] + 1 if place[i] else early[i]
        end = place[i] + 1 if place[i] else late[i]
        for j in range(out_ptr[i], out_ptr[i + 1]):
            v = out_ids[j]
            since[v, end + 1] = max(since[v, end + 1], there)
            if keep[v]:
                since[v, stages + 1] = stages
    for v in range(len(size)):
        for e in range(1, stages + 2):
            since[v, e] = max(since[v, e], since[v, e - 1])
    return since, read


@nb.njit(cache=True)
def cheapest(price, run_price, size, cost, since, read, memory):
    """(least sum of prices, cost of runs again), and adds to memory[k] what is live then, beside what op k reads.

    price[k]: of a byte live just before the first run of op k of the path. run_price: of a unit of cost.

    Let F(e) be the least price of all up to stage e of a value that is present there and has met its needs before e. It
    was live a stage before; or it is made again, and was present before that just when last needed, at since[e] (F
    does not fall with e, so no later than that); or it was never needed before e, and is made for the first time.
    """
    stages = since.shape[1] - 2
    total, spent = 0.0, 0.0
    least = np.zeros(stages + 1)
    kept = np.zeros(stages + 1, np.bool_)
    for v in range(len(size)):
        end = since[v, stages + 1]
        again = run_price * cost[v] if cost[v] < np.inf else np.inf
        for e in range(1, end + 1):
            if since[v, e] == 0:
                least[e] = 0.0
                continue
            stay = least[e - 1] + (0.0 if read[v, e - 1] else price[e - 1] * size[v])
            anew = least[since[v, e]] + again
            kept[e] = stay <= anew
            least[e] = min(stay, anew)
        total += least[end]
        e = end
        while since[v, e] > 0:
            if kept[e]:
                e -= 1
                if not read[v, e]:
                    memory[e] += size[v]
            else:
                spent += cost[v]
                e = since[v, e]
    return total, spent
