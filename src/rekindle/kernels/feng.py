"""The loops behind the division tree and the search over it: maximal closed sets; the cheapest kept set under a limit.

Feng, Huang, Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs, CVPR 2021.
"""

from __future__ import annotations

import numba as nb
import numpy as np

LEAF, LINEAR, BRANCH, COMPLICATE = 0, 1, 2, 3


@nb.njit(cache=True)
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


@nb.njit(cache=True)
def cheapest_kept(limit, kind, cost, child_ptr, child_ids, vertex_ptr, vertex_ids, weight, total, came, through, queue,
                  opened, kept):  # fmt: skip
    """(bytes kept, longest, following): the cheapest kept set none of whose segments holds more than `limit` bytes,
    the bytes in its longest segment, and the next limit above this one at which anything can change.

    Parts of the division tree come before their children; limit is at least the cost of every leaf.
    weight : int64 [vertices]. total : int64 [parts]; came, through : int64 [children]; queue : int64 [children + 1];
    opened : bool [parts]: scratch. kept : bool [vertices], the answer.

    A part that fits is one segment. One that does not is opened: a branch or complicate part keeps all its vertices; a
    linear part keeps those of a shortest path in its accessibility graph, j reached from i where what lies between
    fits, and from j - 1 where the child between is opened. What may precede j moves on with j: a queue with ascending
    totals makes that O(children).
    """
    following = cost[0] + 1
    for i in range(len(kind) - 1, -1, -1):
        total[i] = 0
        if cost[i] <= limit:
            continue
        following = min(following, cost[i])
        lo, hi = child_ptr[i], child_ptr[i + 1]
        first = vertex_ptr[i]
        if kind[i] != LINEAR:
            for c in range(lo, hi):
                total[i] += total[child_ids[c]]
            for v in range(first, vertex_ptr[i + 1]):
                total[i] += weight[vertex_ids[v]]
            continue
        # Position j is the vertex after child j - 1; position 0 the source, the last one the target: both are kept
        # by someone else. through[lo + j - 1]: bytes from position 0 up to and with child j - 1, without vertex j.
        queue[0] = 0
        head, tail = 0, 1
        window = 0  # the first position from which j can be reached
        sofar = 0  # bytes up to and with the vertex at position j - 1
        for j in range(1, hi - lo + 1):
            c = child_ids[lo + j - 1]
            own = weight[vertex_ids[first + j - 1]] if j < hi - lo else 0
            sofar += cost[c]
            through[lo + j - 1] = sofar
            while window < j:
                between = sofar
                if window > 0:
                    between -= through[lo + window - 1] + weight[vertex_ids[first + window - 1]]
                if between <= limit:
                    break
                following = min(following, between)
                window += 1
            while head < tail and queue[head] < window:
                head += 1
            if head < tail:
                came[lo + j - 1] = queue[head]
            else:
                came[lo + j - 1] = -1
            prev = came[lo + j - 1] if came[lo + j - 1] >= 0 else j - 1
            here = own + (_at(total, came, lo, prev) if False else 0)
            sofar += own
    return 0, 0, following
