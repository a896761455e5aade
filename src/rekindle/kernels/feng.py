"""The loops behind the division tree and the search over it: maximal closed sets; the cheapest kept set under a limit.

Feng, Huang, Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs, CVPR 2021.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiled import entry

LEAF, LINEAR, BRANCH, COMPLICATE = 0, 1, 2, 3  # kinds of parts


class Tree(NamedTuple):
    """A division tree; parts stand before their children.

    kind, cost : int64 [parts]; the cost is in bytes.
    child_ptr, child_ids, vertex_ptr, vertex_ids : compressed rows: children, and vertices where a part is divided.
    weight, inner : int64 [vertices]; bytes of a vertex that is kept, or that lies inside a segment.
    """

    kind: np.ndarray
    cost: np.ndarray
    child_ptr: np.ndarray
    child_ids: np.ndarray
    vertex_ptr: np.ndarray
    vertex_ids: np.ndarray
    weight: np.ndarray
    inner: np.ndarray


class TreeScratch(NamedTuple):
    """Work space of `cheapest_kept`: int64 [parts], three of int64 [children], int64 [children + 1], bool [parts]."""

    total: np.ndarray
    path: np.ndarray
    sums: np.ndarray
    came: np.ndarray
    queue: np.ndarray
    opened: np.ndarray


@entry
def maximal_closed_sets(ptr, near):
    """(first, last, work): for each vertex the source and target of the largest closed set that has it inside, -1 for
    none; and how many neighbours were looked at.

    ptr, near : compressed rows of neighbours of an s-t DAG, undirected, s = 0 and t = n - 1 joined by an edge. Vertices
        stand in a topological order. None is on every path from s to t, and all hang together without s and t.

    A closed set [u, v] is what u and v cut off from the rest. With u taken out, the articulation vertices v of what is
    left and what hangs below them are found by one depth-first search (Hopcroft, Tarjan 1973); the outermost ones
    count. A vertex with two edges bounds no maximal closed set: the set could be continued over it.
    """
    n = len(ptr) - 1
    first = np.full(n, -1, np.int64)
    last = np.full(n, -1, np.int64)
    best = np.zeros(n, np.int64)
    seen = np.empty(n, np.int64)  # when the search came to a vertex, -1: not yet
    low = np.empty(n, np.int64)  # the earliest vertex that an edge leads back to from a vertex or from below it
    parent = np.empty(n, np.int64)
    below = np.empty(n, np.int64)  # vertices below, itself included
    inside = np.empty(n, np.int64)  # vertices cut off at a vertex
    top = np.empty(n, np.int64)  # the outermost vertex that cuts a vertex off, -1: none
    order = np.empty(n, np.int64)
    at = np.empty(n, np.int64)
    work = 0
    for u in range(n):
        if ptr[u + 1] - ptr[u] < 3 and 0 < u < n - 1:
            continue
        root = n - 1 if u == 0 else 0
        seen[:] = -1
        inside[:] = 0
        seen[root] = low[root] = 0
        parent[root] = -1
        order[0] = root
        at[root] = ptr[root]
        count = 1
        x = root
        while x >= 0:
            if at[x] < ptr[x + 1]:
                y = near[at[x]]
                at[x] += 1
                work += 1
                if y == u:
                    continue
                if seen[y] < 0:
                    seen[y] = low[y] = count
                    parent[y] = x
                    order[count] = y
                    count += 1
                    at[y] = ptr[y]
                    x = y
                elif y != parent[x]:
                    low[x] = min(low[x], seen[y])
            else:
                p = parent[x]
                if p >= 0:
                    low[p] = min(low[p], low[x])
                x = p
        for k in range(count):
            below[order[k]] = 1
        for k in range(count - 1, 0, -1):
            x = order[k]
            p = parent[x]
            below[p] += below[x]
            if p != root and low[x] >= seen[p]:
                inside[p] += below[x]
        top[root] = -1
        for k in range(1, count):
            x = order[k]
            p = parent[x]
            if top[p] >= 0:
                top[x] = top[p]
            elif p != root and low[x] >= seen[p]:  # what only u and the root cut off is found with the root taken out
                top[x] = p
            else:
                top[x] = -1
            if top[x] >= 0 and inside[top[x]] > best[x]:
                best[x] = inside[top[x]]
                first[x] = min(u, top[x])
                last[x] = max(u, top[x])
    return first, last, work


@entry
def cheapest_kept(limit, tree, scratch, kept):
    """(bytes kept, bytes of the longest segment, next limit) of the cheapest saved set with segments of at most `limit` bytes.

    The next limit is the least one above this at which the answer can change.

    limit is at least the cost of each leaf.
    kept : bool [vertices]; the set, written here.

    A part that fits is one segment. One that does not is opened: a branch or complicate part keeps all its vertices; a
    linear part keeps the vertices of a shortest path in its accessibility graph, where position j is reached from i if the
    bytes between fit, and from j - 1 if the child between is itself opened. The positions from which j can be reached
    are a window that only moves on, so a queue of the candidates in ascending order of path makes a part O(children).
    """
    kind, cost, weight, inner = tree.kind, tree.cost, tree.weight, tree.inner
    child_ptr, child_ids, vertex_ptr, vertex_ids = tree.child_ptr, tree.child_ids, tree.vertex_ptr, tree.vertex_ids
    total, path, sums = scratch.total, scratch.path, scratch.sums
    came, queue, opened = scratch.came, scratch.queue, scratch.opened
    following = cost[0] + 1
    for i in range(len(kind) - 1, -1, -1):
        total[i] = 0
        if cost[i] <= limit:
            continue
        following = min(following, cost[i])
        lo = child_ptr[i]
        n = child_ptr[i + 1] - lo
        if kind[i] != LINEAR:
            for c in range(lo, lo + n):
                total[i] += total[child_ids[c]]
            for v in range(vertex_ptr[i], vertex_ptr[i + 1]):
                total[i] += weight[vertex_ids[v]]
            continue
        # Position 0 is the source, n the target, j between the vertex after child j - 1. Of position j > 0, at
        # lo + j - 1: path, the bytes kept up to it, and sums, all bytes up to it; both with its own, but for the ends.
        queue[0] = 0
        head, tail, window, sofar = 0, 1, 0, 0
        for j in range(1, n + 1):
            child = child_ids[lo + j - 1]
            reach = sofar + cost[child]
            while window < j:
                between = reach - (sums[lo + window - 1] if window > 0 else 0)
                if between <= limit:
                    break
                following = min(following, between)
                window += 1
            while head < tail and queue[head] < window:
                head += 1
            if head < tail:
                before = queue[head]
                came[lo + j - 1] = before
                here = path[lo + before - 1] if before > 0 else 0
            else:
                came[lo + j - 1] = -1
                here = total[child] + (path[lo + j - 2] if j > 1 else 0)
            sofar = reach
            if j < n:
                vertex = vertex_ids[vertex_ptr[i] + j - 1]
                here += weight[vertex]
                sofar += inner[vertex]
            path[lo + j - 1] = here
            sums[lo + j - 1] = sofar
            while head < tail and (path[lo + queue[tail - 1] - 1] if queue[tail - 1] > 0 else 0) >= here:
                tail -= 1
            queue[tail] = j
            tail += 1
        total[i] = path[lo + n - 1]
    kept[:] = False
    opened[:] = False
    opened[0] = cost[0] > limit
    longest = 0 if opened[0] else cost[0]
    for i in range(len(kind)):
        if not opened[i]:
            continue
        lo = child_ptr[i]
        n = child_ptr[i + 1] - lo
        if kind[i] != LINEAR:
            for v in range(vertex_ptr[i], vertex_ptr[i + 1]):
                kept[vertex_ids[v]] = True
            for c in range(lo, lo + n):
                opened[child_ids[c]] = cost[child_ids[c]] > limit
                if cost[child_ids[c]] <= limit:
                    longest = max(longest, cost[child_ids[c]])
            continue
        j = n
        while j > 0:
            before = came[lo + j - 1]
            if before < 0:
                opened[child_ids[lo + j - 1]] = True
                before = j - 1
            else:
                between = (sums[lo + j - 2] if j > 1 else 0) + cost[child_ids[lo + j - 1]]
                longest = max(longest, between - (sums[lo + before - 1] if before > 0 else 0))
            if before > 0:
                kept[vertex_ids[vertex_ptr[i] + before - 1]] = True
            j = before
    return total[0], longest, following
