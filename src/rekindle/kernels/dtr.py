"""Dynamic tensor rematerialisation, simulated over a fixed order of ops."""

from __future__ import annotations

import numpy as np

from .compiled import entry, inner


@inner
def find(root, x):
    """The representative of a set of evicted values."""
    while root[x] != x:
        root[x] = root[root[x]]
        x = root[x]
    return x


@inner
def neighbourhood(v, weight, there, part, root, total, seen, stamp, producer, in_ptr, in_ids, out_ptr, out_ids, read_ptr,
                  read_ids):  # fmt: skip
    """The cost of recomputing v and the evicted values around it: those from which v is made and those made from it.

    A set of evicted values that touches v several times counts once: `seen` is marked with the stamp.
    """
    o = producer[v]
    cost = weight[o]
    for j in range(in_ptr[o], in_ptr[o + 1]):
        u = in_ids[j]
        if producer[u] >= 0 and not there[u] and part[u] >= 0:
            r = find(root, part[u])
            if seen[r] != stamp:
                seen[r] = stamp
                cost += total[r]
    for j in range(read_ptr[v], read_ptr[v + 1]):
        q = read_ids[j]
        for k in range(out_ptr[q], out_ptr[q + 1]):
            u = out_ids[k]
            if not there[u] and part[u] >= 0:
                r = find(root, part[u])
                if seen[r] != stamp:
                    seen[r] = stamp
                    cost += total[r]
    return cost


@inner
def join(a, b, root, total):
    """Joins the sets of entries a and b."""
    a, b = find(root, a), find(root, b)
    if a != b:
        root[a] = b
        total[b] += total[a]


@inner
def join_around(v, there, part, root, total, producer, in_ptr, in_ids, out_ptr, out_ids, read_ptr, read_ids):
    """Joins the set of v, which was just evicted, to the sets that it touches."""
    o = producer[v]
    for j in range(in_ptr[o], in_ptr[o + 1]):
        u = in_ids[j]
        if not there[u] and part[u] >= 0:
            join(part[u], part[v], root, total)
    for j in range(read_ptr[v], read_ptr[v + 1]):
        for k in range(out_ptr[read_ids[j]], out_ptr[read_ids[j] + 1]):
            u = out_ids[k]
            if not there[u] and part[u] >= 0:
                join(part[u], part[v], root, total)


@inner
def is_waited_for(v, there, left, keep, behind, out_ptr, out_ids, read_ptr, read_ids):
    """Whether an evicted value may have to be recomputed from v."""
    for j in range(read_ptr[v], read_ptr[v + 1]):
        q = read_ids[j]
        for i in range(out_ptr[q], out_ptr[q + 1]):
            u = out_ids[i]
            if not there[u] and (left[u] > 0 or keep[u] or not behind[q]):
                return True
    return False


@inner
def remove(v, candidates, place, n):
    """Takes v out of the first n candidates."""
    last = candidates[n - 1]
    candidates[place[v]] = last
    place[last] = place[v]


@entry
def simulate(order, limit, weight, read_ptr, read_ids, runs, graph):
    """Number of runs written to `runs`, or -1 where it is too short for them (evictions chase each other).

    order : int64, the ops once each. limit : bytes; where nothing can be evicted it is overstepped.
    read_* : compressed rows, the readers of each value among `order`.

    A value is freed once its last reader in `order` has run. If its op comes before the boundary it counts as evicted, as
    it may still serve to recompute another value; else it is gone for good. A value cannot be recomputed, and is not
    evicted, if its op may run only once or reads a value that is gone for good.
    """
    size, producer, keep = graph.bytes, graph.producer, graph.keep
    in_ptr, in_ids, out_ptr, out_ids = graph.in_ptr, graph.in_ids, graph.out_ptr, graph.out_ids
    workspace, recompute, boundary = graph.workspace, graph.recompute, graph.boundary
    n_values, n_ops = len(size), len(workspace)
    there = np.zeros(n_values, np.bool_)
    fixed = np.zeros(n_values, np.bool_)  # cannot be recomputed
    locks = np.zeros(n_values, np.int64)  # ops under way that read it
    left = np.zeros(n_values, np.int64)  # readers in `order` that are to come
    used = np.zeros(n_values)  # the time of its last use
    # Evicted values lie in sets that touch; an entry of a set stays when its value is back, with its cost taken off.
    part = np.full(n_values, -1, np.int64)
    room = len(runs) * 4 + n_values + 1
    root, total, seen = np.empty(room, np.int64), np.zeros(room), np.zeros(room, np.int64)
    sets, stamp = 0, 0
    behind, ran = np.zeros(n_ops, np.bool_), np.zeros(n_ops, np.bool_)
    stack = np.empty(n_ops + 1, np.int64)
    candidates = np.empty(n_values, np.int64)  # values there, in no order
    place = np.full(n_values, -1, np.int64)
    n_there = 0
    past = False
    for k in range(len(order)):
        past = past or order[k] == boundary
        behind[order[k]] = past
        for j in range(in_ptr[order[k]], in_ptr[order[k] + 1]):
            left[in_ids[j]] += 1
    tick = 0.0
    for k in range(len(order)):
        tick += weight[order[k]]
    tick = max(1e-12, 0.01 * tick / max(1, len(order)))  # so that time passes with ops that cost nothing
    now, held, m = 0.0, 0, 0
    for k in range(len(order) + n_values):
        if k < len(order):
            top, stack[0] = 1, order[k]
        else:  # at the end, values to be kept come back and stay
            v = k - len(order)
            if not keep[v] or producer[v] < 0:
                continue
            locks[v] += 1
            if there[v]:
                continue
            top, stack[0] = 1, producer[v]
        # Inputs of an op under way are not evicted.
        for j in range(in_ptr[stack[0]], in_ptr[stack[0] + 1]):
            locks[in_ids[j]] += 1
        while top > 0:
            o = stack[top - 1]
            missing = -1
            for j in range(in_ptr[o], in_ptr[o + 1]):
                v = in_ids[j]
                if producer[v] >= 0 and not there[v]:
                    missing = producer[v]
            if missing >= 0:
                stack[top] = missing
                top += 1
                for j in range(in_ptr[missing], in_ptr[missing + 1]):
                    locks[in_ids[j]] += 1
                continue
            need = workspace[o]
            for j in range(out_ptr[o], out_ptr[o + 1]):
                if not there[out_ids[j]]:
                    need += size[out_ids[j]]
            while held + need > limit:
                best, least = -1, np.inf
                for c in range(n_there):
                    v = candidates[c]
                    if (
                        fixed[v]
                        or locks[v] > 0
                        or size[v] == 0
                        or (left[v] == 0 and not keep[v] and behind[producer[v]])
                    ):
                        continue
                    stamp += 1
                    cost = neighbourhood(v, weight, there, part, root, total, seen, stamp, producer, in_ptr, in_ids,
                                         out_ptr, out_ids, read_ptr, read_ids)  # fmt: skip
                    h = cost / (size[v] * (now - used[v] + tick))
                    if h < least:
                        best, least = v, h
                if best < 0:
                    break
                v = best
                if sets >= room:
                    return -1
                there[v] = False
                held -= size[v]
                remove(v, candidates, place, n_there)
                n_there -= 1
                root[sets], total[sets], part[v] = sets, weight[producer[v]], sets
                sets += 1
                join_around(v, there, part, root, total, producer, in_ptr, in_ids, out_ptr, out_ids, read_ptr, read_ids)
            if m >= len(runs) or (ran[o] and not recompute[o]):
                return -1
            ran[o] = True
            runs[m] = o
            m += 1
            top -= 1
            now += weight[o] + tick
            lost = not recompute[o]
            for j in range(in_ptr[o], in_ptr[o + 1]):
                v = in_ids[j]
                locks[v] -= 1
                used[v] = now
            for j in range(out_ptr[o], out_ptr[o + 1]):
                v = out_ids[j]
                used[v] = now
                fixed[v] = fixed[v] or lost
                if not there[v]:
                    there[v] = True
                    held += size[v]
                    candidates[n_there], place[v] = v, n_there
                    n_there += 1
                if part[v] >= 0:
                    total[find(root, part[v])] -= weight[o]
                    part[v] = -1
        if k < len(order):
            o = order[k]
            for j in range(in_ptr[o], in_ptr[o + 1]):
                left[in_ids[j]] -= 1
        # Free the values that have no reader left.
        for c in range(n_there - 1, -1, -1):
            v = candidates[c]
            if left[v] > 0 or keep[v] or locks[v] > 0:
                continue
            o = producer[v]
            if fixed[v] or behind[o]:
                if is_waited_for(v, there, left, keep, behind, out_ptr, out_ids, read_ptr, read_ids):
                    continue
                for j in range(read_ptr[v], read_ptr[v + 1]):
                    q = read_ids[j]
                    for i in range(out_ptr[q], out_ptr[q + 1]):
                        fixed[out_ids[i]] = True
            else:
                if sets >= room:
                    return -1
                root[sets], total[sets], part[v] = sets, weight[o], sets
                sets += 1
                join_around(v, there, part, root, total, producer, in_ptr, in_ids, out_ptr, out_ids, read_ptr, read_ids)
            there[v] = False
            held -= size[v]
            remove(v, candidates, place, n_there)
            n_there -= 1
    return m
