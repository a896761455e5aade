"""Single-level checkpoints on a chain: the static, the revised and the exact objective."""

from __future__ import annotations

import numba as nb
import numpy as np


@nb.njit(cache=True)
def cheapest_kept(limit, cost, begin, end, kept):
    """(bytes kept, bytes of the longest segment) where segments take at most `limit`, which the shortest ones do.

    cost : int64 [n + 1]; bytes of each position, 0 and n are not counted.
    begin, end : int64 [n + 1], nowhere falling; between positions i and j lie end[j] - begin[i] bytes.
    kept : bool [n + 1]; receives the positions.

    f(j) = cost[j] + the least f(i) of the i from which a segment can reach j, by a monotone queue. O(n).
    """
    n = len(cost) - 1
    best = np.zeros(n + 1, np.int64)
    before = np.zeros(n + 1, np.int64)
    queue = np.zeros(n + 1, np.int64)
    left, right = 0, 1  # the queue is queue[left:right], best rises along it
    for j in range(1, n + 1):
        while end[j] - begin[queue[left]] > limit:
            left += 1
        before[j] = queue[left]
        best[j] = best[queue[left]] + (cost[j] if j < n else 0)
        while right > left and best[queue[right - 1]] >= best[j]:
            right -= 1
        queue[right] = j
        right += 1
    kept[:] = False
    longest = 0
    j = n
    while j > 0:
        longest = max(longest, end[j] - begin[before[j]])
        j = before[j]
        kept[j] = j > 0
    return best[n], longest


@nb.njit(cache=True)
def static(cost, begin, end):
    """(value, kept bool [n + 1]): least bytes kept + bytes of the longest segment. Arguments as for `cheapest_kept`.

    Each number of bytes that a segment can have is tried as limit, in rising order, until it alone is too much. O(n^3).
    """
    n = len(cost) - 1
    limits = np.empty(n * (n + 1) // 2, np.int64)
    m = 0
    least = 0  # no limit can be below the largest of the shortest segments
    for i in range(n):
        least = max(least, end[i + 1] - begin[i])
        for j in range(i + 1, n + 1):
            limits[m] = end[j] - begin[i]
            m += 1
    limits = np.unique(limits)
    kept = np.zeros(n + 1, np.bool_)
    found = np.zeros(n + 1, np.bool_)
    value = end[n] - begin[0]
    for limit in limits:
        if limit >= value:
            break
        if limit >= least:
            total, longest = cheapest_kept(limit, cost, begin, end, found)
            if total + longest < value:
                value = total + longest
                kept[:] = found
    return value, kept


@nb.njit(cache=True)
def revised(size, inner):
    """(M(0), follow int64 [n]): M(n) = size[n] and M(i) = size[i] + min over j > i of max(M(j), U(i, j)).

    size : int64 [n + 1], of each position; inner : int64 [n], of what lies between it and the next.
    follow : the j that gives M(i).

    U(i, j), the sizes and inner ones behind i up to j, and the largest size from i to before j, grows with j and as i
    falls. So the queue of candidates j, along which j rises and M(j) falls, changes at its ends only. O(n).
    """
    n = len(inner)
    sums = size.cumsum()
    sums[1:] += inner.cumsum()
    m = np.empty(n + 1, np.int64)
    m[n] = size[n]
    follow = np.empty(n, np.int64)
    # Both queues are filled from their left end: the arrays hold them from `left` to `right`, both falling.
    queue = np.empty(n, np.int64)
    left, right = n, n
    largest = np.empty(n, np.int64)  # positions before the last candidate whose size none before them reaches
    large_left, large_right = n, n
    for i in range(n - 1, -1, -1):
        # With M(j) at least M(i + 1), j is no better now nor later: its U is larger too.
        while left < right and m[queue[left]] >= m[i + 1]:
            left += 1
        left -= 1
        queue[left] = i + 1
        while large_left < large_right and size[largest[large_left]] <= size[i]:
            large_left += 1
        large_left -= 1
        largest[large_left] = i
        while True:
            j = queue[right - 1]
            while largest[large_right - 1] >= j:
                large_right -= 1
            u = sums[j] - sums[i] + size[largest[large_right - 1]]
            # The one before has a larger M and a smaller U. Once U(i, j) reaches that M it is as good, and stays so.
            if right - left < 2 or m[queue[right - 2]] > u:
                break
            right -= 1
        m[i] = size[i] + max(m[j], u)
        follow[i] = j
    return m[0], follow


@nb.njit(cache=True)
def frontier(most, hold, passing, saved, gradient, save_peak, alone_peak, backward_peak, skip, save, alone, backward):
    """(begin int64 [n + 2], peaks, times, stages, entries): the single-level plans of which none is better in both.

    most : plans to go on with from a stage; where there are more, these are spread over them, the two ends among them.
    The other arguments are those of `Chain` and `Times`.

    Entries begin[n - i] to begin[n - i + 1] - 1 are the plans from stage i on where its input is held, in order of rising peak;
    stages and entries say what comes next: the next stage whose input is kept, n for none, and the entry there. The
    peak of (i, j, rest) is max(U(i, j), hold[i, j] + peak of the rest), U being the peak of stages i to j - 1: of
    passing them and then, behind the gradient, of running them again. O(n^2 most log) for n stages.
    """
    n = len(saved)
    begin = np.zeros(n + 2, np.int64)
    peaks, times = np.zeros((n + 1) * most, np.int64), np.zeros((n + 1) * most)
    stages, entries = np.full((n + 1) * most, n, np.int64), np.zeros((n + 1) * most, np.int64)
    begin[1] = 1  # nothing is left to do: no bytes, no time
    for i in range(n - 1, -1, -1):
        count = begin[n - i]
        peak, time = np.empty(count, np.int64), np.empty(count)
        stage, entry = np.empty(count, np.int64), np.empty(count, np.int64)
        m = 0
        passed, forward, behind, held = 0, 0, 0, 0
        spent, again = 0.0, 0.0
        for j in range(i + 1, n + 1):
            last = j - 1
            u = max(behind, held + alone_peak[last])
            if last > i:
                u = max(u, forward + gradient[last])
            spent += skip[last] if j < n else -spent  # what is kept at once is not passed before
            passed = max(passed, passing[i, last])
            for e in range(begin[n - j], begin[n - j + 1]):
                peak[m] = max(u, passed, hold[i, j] + peaks[e]) if j < n else u
                time[m] = spent + again + alone[last] + backward[last] + times[e]
                stage[m], entry[m] = j, e
                m += 1
            forward = max(forward, held + save_peak[last])
            behind = max(behind, held + backward_peak[last])
            held += saved[last]
            again += save[last] + backward[last]
        kept = _undominated(peak, time)
        if len(kept) > most:
            kept = kept[np.linspace(0, len(kept) - 1, most).astype(np.int64)]
        for q in kept:
            peaks[count], times[count], stages[count], entries[count] = peak[q], time[q], stage[q], entry[q]
            count += 1
        begin[n - i + 1] = count
    return begin, peaks, times, stages, entries


@nb.njit(cache=True)
def _undominated(peak, time):
    """int64: which are not reached in both by another, in order of rising peak."""
    order = np.argsort(time, kind="mergesort")
    order = order[np.argsort(peak[order], kind="mergesort")]
    m = 0
    for q in order:
        if m == 0 or time[q] < time[order[m - 1]]:
            order[m] = q
            m += 1
    return order[:m]
