"""Single-level checkpoints on a chain: the static, the revised and the exact objective."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiled import entry, inner
from .range_max import largest, range_max


class StageBytes(NamedTuple):
    """Bytes of the stages of a chain, int64 [n]: the parts of the input that backward reads and does not read, and the rest
    as in `structure.chain.Chain`."""

    read: np.ndarray
    unread: np.ndarray
    saved: np.ndarray
    gradient: np.ndarray
    skip_peak: np.ndarray
    save_peak: np.ndarray
    alone_peak: np.ndarray
    backward_peak: np.ndarray


class Stages(NamedTuple):
    """Bytes (int64) and times (float64) of the stages of a chain, as in `structure.chain`: `Chain` and `Times`."""

    hold: np.ndarray
    passing: np.ndarray
    saved: np.ndarray
    gradient: np.ndarray
    save_peak: np.ndarray
    alone_peak: np.ndarray
    backward_peak: np.ndarray
    skip: np.ndarray
    save: np.ndarray
    alone: np.ndarray
    backward: np.ndarray


@inner
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


@entry
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


@entry
def revised(size, inside):
    """(M(0), follow int64 [n]): M(n) = size[n] and M(i) = size[i] + min over j > i of max(M(j), U(i, j)).

    size : int64 [n + 1], of each position; inside : int64 [n], of what lies between it and the next.
    follow : the j that gives M(i).

    U(i, j), the sizes and inner ones behind i up to j, and the largest size from i to before j, grows with j and as i
    falls. So the queue of candidates j, along which j rises and M(j) falls, changes at its ends only. O(n).
    """
    n = len(inside)
    sums = size.cumsum()
    sums[1:] += inside.cumsum()
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


@entry
def revised_cuts(cross, inside):
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


@entry
def least(sizes):
    """(peak, follow int64 [n]): the least peak of a single-level plan, and the next kept input from each stage, n for none.

    sizes : of a chain where what passes from one stage is read by the next alone.

    `frontier` uses the same recurrence. From stage i, keeping the input of j next,

        V(i, j) = max(U(i, j), unread[i] + max(P(i, j), M(j))),    M(j) = read[j] + the least V(j, .),

    U being the peak of the segment at work, P the peak of passing it. The part of them from inside the segment, A(i, j),
    grows with j and as i falls; M falls along the candidates j that no earlier one beats. So the best j is near where the
    two cross, and is looked for from there both ways until one of them alone is no better. Two things of U concern the
    segment's end and need not grow: its last stage is run alone, and its own gradient waits while it runs forward. Where
    they may give an earlier candidate away, the later one stays. O(n) where backward reads all that passes between stages
    and the ends do not matter: the crossing moves one way. Else what is looked at around a crossing comes on top, and the
    logarithm of how far it jumps.
    """
    read, unread, saved, gradient = sizes.read, sizes.unread, sizes.saved, sizes.gradient
    skip_peak, save_peak = sizes.skip_peak, sizes.save_peak
    alone_peak, backward_peak = sizes.alone_peak, sizes.backward_peak
    n = len(saved)
    begin = np.zeros(n + 1, np.int64)
    begin[1:] = saved.cumsum()
    end = np.zeros(n + 1, np.int64)  # of a segment that ends before j: its last stage alone
    end[1:] = begin[:-1] + alone_peak
    behind, ahead = range_max(begin[:-1] + backward_peak), range_max(begin[:-1] + save_peak)
    passed = range_max(read + unread + skip_peak)
    highest = begin[:-1] + save_peak  # of all before and here
    for k in range(1, n):
        highest[k] = max(highest[k], highest[k - 1])
    m = np.zeros(n + 1, np.int64)
    follow = np.full(n, n, np.int64)
    right, left = np.full(n + 1, n, np.int64), np.full(n + 1, n, np.int64)  # neighbours among the candidates
    first = n
    mains, count = np.empty(n, np.int64), 0  # candidates whose M none before them reaches; the last is the first
    main = np.zeros(n + 1, np.bool_)
    crossing = 0
    peak = 0
    for i in range(n - 1, -1, -1):
        if i + 1 < n:
            new = i + 1
            while count and m[mains[count - 1]] >= m[new]:
                count -= 1
                old = mains[count]
                main[old] = False
                reached = max(end[old], largest(behind, new - 1, old - 1))
                waits = (
                    new < 2 or gradient[new - 1] <= gradient[old - 1] or highest[new - 2] + gradient[new - 1] <= reached
                )
                if end[new] <= reached and waits:  # never better than the new one
                    if first == old:
                        first = right[old]
                    else:
                        right[left[old]] = right[old]
                    left[right[old]] = left[old]
            right[new], left[new] = first, n
            left[first] = new
            first = new
            main[new] = True
            mains[count] = new
            count += 1
        base, extra = begin[i], unread[i]
        best = max(largest(behind, i, n - 1), end[n]) - base
        if n - 1 > i:
            best = max(best, largest(ahead, i, n - 1) + gradient[n - 1] - base)
        chosen = n
        if count:
            crossing = _crossing(mains, count, min(crossing, count - 1), m, behind, passed, skip_peak, base, extra, i)
            start = mains[crossing]
            for direction in range(2):
                j = right[start] if direction == 0 else start
                while j < n:
                    inside = _inside(behind, passed, skip_peak, base, extra, i, j)
                    if (direction == 0 and inside >= best) or (direction == 1 and main[j] and extra + m[j] >= best):
                        break
                    value = max(inside, end[j] - base, extra + m[j])
                    if j - 1 > i:
                        value = max(value, largest(ahead, i, j - 1) + gradient[j - 1] - base)
                    if value < best:
                        best, chosen = value, j
                    j = right[j] if direction == 0 else left[j]
        follow[i] = chosen
        m[i] = read[i] + best
        peak = best
    return peak, follow


@inner
def _crossing(mains, count, guess, m, behind, passed, skip_peak, base, extra, i):
    """The first k at which A(i, mains[k]) has not reached M, or the last k. Looks ever further from a guess, then halves."""
    low, high, step = 0, count - 1, 1  # it is one of low to high
    at = min(guess, high - 1)
    while low < high:
        if _inside(behind, passed, skip_peak, base, extra, i, mains[at]) >= extra + m[mains[at]]:
            low = at + 1
            ahead = at + step
        else:
            high = at
            ahead = at - step
        known = low > 0 and high < count - 1
        at = (low + high) // 2 if known else max(low, min(ahead, high - 1))
        step *= 2
    return low


@inner
def _inside(behind, passed, skip_peak, base, extra, i, j):
    """A(i, j) of `least`."""
    return max(largest(behind, i, j - 1) - base, extra + max(skip_peak[i], largest(passed, i + 1, j)))


@entry
def frontier(most, stages):
    """(begin int64 [n + 2], peaks, times, following, entries): the single-level plans of which none is better in both.

    most : plans to go on with from a stage; where there are more, these are spread over them, the two ends among them.
    stages : `Stages`.

    Entries begin[n - i] to begin[n - i + 1] - 1 are the plans from stage i on where its input is held, in order of rising peak;
    following and entries say what comes next: the next stage whose input is kept, n for none, and the entry there. The
    peak of (i, j, rest) is max(U(i, j), hold[i, j] + peak of the rest), U being the peak of stages i to j - 1: of
    passing them and then, behind the gradient, of running them again. O(n^2 most log) for n stages.
    """
    hold, passing, saved, gradient = stages.hold, stages.passing, stages.saved, stages.gradient
    save_peak, alone_peak, backward_peak = stages.save_peak, stages.alone_peak, stages.backward_peak
    skip, save, alone, backward = stages.skip, stages.save, stages.alone, stages.backward
    n = len(saved)
    begin = np.zeros(n + 2, np.int64)
    peaks, times = np.zeros((n + 1) * most, np.int64), np.zeros((n + 1) * most)
    following, entries = np.full((n + 1) * most, n, np.int64), np.zeros((n + 1) * most, np.int64)
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
            peaks[count], times[count], following[count], entries[count] = peak[q], time[q], stage[q], entry[q]
            count += 1
        begin[n - i + 1] = count
    return begin, peaks, times, following, entries


@inner
def _undominated(peak, time):
    """int64: which are not reached in both by another, in order of rising peak."""
    order = np.argsort(time, kind="mergesort")
    # peaks are exact as floats too; so one sort is compiled, not two
    order = order[np.argsort(peak[order].astype(np.float64), kind="mergesort")]
    m = 0
    for q in order:
        if m == 0 or time[q] < time[order[m - 1]]:
            order[m] = q
            m += 1
    return order[:m]
