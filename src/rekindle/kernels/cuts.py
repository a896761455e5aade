"""Where to cut a chain of forward ops into segments that are recomputed one by one."""

from __future__ import annotations

import numpy as np

from .compiled import entry


@entry
def revised(cross, inside):
    """int64: cut positions that minimise M(0), where M(i) = cross[i] + min over j > i of max(M(j), U(i, j)).

    cross : float64 [n + 1]; bytes that must be saved to start again at position i (0 at both ends).
    inside : float64 [n + 1]; prefix sums: U(i, j) = inside[j] - inside[i] are the bytes live at once while segment (i, j)
        is recomputed and its backward runs.

    The revised objective of Hong et al. (2502.12499): the values behind a cut are freed by the time the segment before it
    is recomputed. O(n^2).
    """
    n = len(cross) - 1
    best = np.empty(n + 1)
    follow = np.empty(n + 1, np.int64)
    best[n] = 0.0
    follow[n] = n
    for i in range(n - 1, -1, -1):
        best[i] = np.inf
        for j in range(i + 1, n + 1):
            u = inside[j] - inside[i]
            if u >= best[i]:
                break  # U only grows with j
            x = max(best[j], u)
            if x < best[i]:
                best[i] = x
                follow[i] = j
        if best[i] == np.inf:
            best[i] = inside[n] - inside[i]
            follow[i] = n
        best[i] += cross[i]
    out = np.empty(n, np.int64)
    k = 0
    i = follow[0]
    while i < n:
        out[k] = i
        k += 1
        i = follow[i]
    return out[:k]
