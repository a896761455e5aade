"""Copies to and from the host in a sequence of runs: the gaps in which values are not used, and where their copies go."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import FETCH, FREE, OFFLOAD, RUN
from .compiled import entry, inner


class Gaps(NamedTuple):
    """Stretches of runs in which a live value is not used, in the order in which they begin. Runs are counted from 0.

    value : int64 [gaps].
    last, next : int64 [gaps]; the runs that use the value before and after the gap.
    by_next : int64 [gaps]; the gaps in the order in which they end.
    """

    value: np.ndarray
    last: np.ndarray
    next: np.ndarray
    by_next: np.ndarray


@entry
def gaps(steps, may_leave, graph):
    """int64 [gaps, 3] rows (value, last, next) of a valid schedule without copies, in the order of `next`. O(steps + edges).

    may_leave : bool [values].
    """
    in_ptr, in_ids, out_ptr, out_ids = graph.in_ptr, graph.in_ids, graph.out_ptr, graph.out_ids
    used = np.full(len(graph.bytes), -1, np.int64)  # the last run that used the value in this life
    read = 0
    for s in range(len(steps)):
        if steps[s, 0] == RUN:
            read += in_ptr[steps[s, 1] + 1] - in_ptr[steps[s, 1]]
    rows = np.empty((read, 3), np.int64)
    m, k = 0, -1
    for s in range(len(steps)):
        if steps[s, 0] != RUN:
            continue
        k += 1
        o = steps[s, 1]
        for j in range(in_ptr[o], in_ptr[o + 1]):
            v = in_ids[j]
            if may_leave[v] and used[v] >= 0 and k - used[v] > 1:
                rows[m, 0], rows[m, 1], rows[m, 2] = v, used[v], k
                m += 1
            used[v] = k
        for j in range(out_ptr[o], out_ptr[o + 1]):
            used[out_ids[j]] = k
    return rows[:m]


@inner
def _most(numbers, begin, end):
    most = 0
    for k in range(begin, end):
        most = max(most, numbers[k])
    return most


@inner
def _add(numbers, begin, end, more):
    for k in range(begin, end):
        numbers[k] += more


@entry
def choose(order, gaps, memory, limit, host_bytes, graph):
    """(bool [gaps], whether they suffice): gaps taken in this order, each if some run within it holds more than the limit
    beside those taken before, and if the host has room.

    memory : int64 [runs], bytes during each run. host_bytes : that the host may hold. O(runs of all gaps).
    """
    chosen = np.zeros(len(gaps.value), np.bool_)
    held, host = memory.copy(), np.zeros_like(memory)
    for g in order:
        size, begin, end = graph.bytes[gaps.value[g]], gaps.last[g], gaps.next[g] + 1
        chosen[g] = _most(held, begin + 1, end - 1) > limit and _most(host, begin, end) + size <= host_bytes
        if chosen[g]:
            _add(host, begin, end, size)
            _add(held, begin + 1, end - 1, -size)
    return chosen, _most(held, 0, len(held)) <= limit


@inner
def _latest_fetches(order, gaps, begins, link, size):
    """int64 [gaps]: the run before which each fetch begins so that nothing waits for it, if the link back is free for them."""
    at = np.zeros(len(gaps.value), np.int64)
    free = np.inf
    for q in range(len(order) - 1, -1, -1):
        g = order[q]
        free = min(begins[gaps.next[g]], free) - size[gaps.value[g]] * link[1] - link[2]
        k = gaps.next[g]
        while k > gaps.last[g] + 1 and begins[k] > free:
            k -= 1
        at[g] = k
    return at


NOT_BEGUN, COPYING, AWAY, BACK, STAYED = 0, 1, 2, 3, 4  # states of a gap


@entry
def place(steps, gaps, chosen, memory, limit, seconds, link, graph):
    """(steps with the copies of the chosen gaps, seconds of the whole, bool [gaps] whose value was away); infinite seconds
    where the limit is not kept.

    A copy to the host begins with the gap. Its value is freed once the copy has ended, or before the run that needs the room,
    which then waits for the copy. A fetch begins as late as it can without a wait, later where room is missing until then,
    and at the latest before the next use. The seconds are those of `judge.clock`. O(steps + edges + runs of the chosen gaps).

    steps : of a valid schedule without copies. memory : int64 [runs], bytes during each run. seconds : float64 [ops].
    link : as in `judge.clock`.
    """
    size, in_ptr, in_ids = graph.bytes, graph.in_ptr, graph.in_ids
    begins = np.empty(len(memory))
    total, k = 0.0, 0
    for s in range(len(steps)):
        if steps[s, 0] == RUN:
            begins[k] = total
            total += seconds[steps[s, 1]]
            k += 1
    picked = np.flatnonzero(chosen)
    returns = np.empty(len(picked), np.int64)
    q = 0
    for g in gaps.by_next:
        if chosen[g]:
            returns[q] = g
            q += 1
    at = _latest_fetches(returns, gaps, begins, link, size)
    state = np.zeros(len(gaps.value), np.int8)
    rows = np.empty((len(steps) + 3 * len(picked), 3), np.int64)
    rows[:, 2] = -1
    left, there = np.zeros(len(size)), np.zeros(len(size))
    on_host = np.zeros(len(size), np.bool_)
    profile = memory.copy()
    flying = np.empty(len(picked), np.int64)  # gaps whose copy to the host goes on, in the order in which they end
    first, last, opened, returned = 0, 0, 0, 0
    now, out, back = 0.0, 0.0, 0.0
    m, k = 0, -1
    for s in range(len(steps)):
        o = steps[s, 1]
        if steps[s, 0] == FREE:
            now = max(now, left[o], there[o])
            rows[m, 0], rows[m, 1] = FREE, o
            m += 1
            continue
        k += 1
        while first < last and (
            gaps.next[flying[first]] <= k or left[gaps.value[flying[first]]] <= now or profile[k] > limit
        ):
            g = flying[first]
            v = gaps.value[g]
            first += 1
            if gaps.next[g] <= k:
                state[g] = STAYED
                continue
            now = max(now, left[v], there[v])
            _add(profile, k, gaps.next[g], -size[v])
            state[g] = AWAY
            rows[m, 0], rows[m, 1] = FREE, v
            m += 1
        if profile[k] > limit:
            return rows[:m], np.inf, state == BACK
        while returned < len(returns):
            g = returns[returned]
            v, end = gaps.value[g], gaps.next[g]
            if state[g] != AWAY:
                if end > k:
                    break
                returned += 1
                continue
            if at[g] > k or end > k and _most(profile, k, end) + size[v] > limit:
                break
            begin = max(now, left[v], back)
            back = begin + size[v] * link[1] + link[2]
            there[v] = back
            if not link[3]:
                out = back
            _add(profile, k, end, size[v])
            state[g] = BACK
            on_host[v] = False
            rows[m, 0], rows[m, 1] = FETCH, v
            m += 1
            returned += 1
        for j in range(in_ptr[o], in_ptr[o + 1]):
            now = max(now, there[in_ids[j]])
        into = steps[s, 2]
        if into >= 0:
            now = max(now, left[into])
        rows[m, 0], rows[m, 1], rows[m, 2] = RUN, o, into
        m += 1
        now += seconds[o]
        while opened < len(picked) and gaps.last[picked[opened]] <= k:
            g = picked[opened]
            v = gaps.value[g]
            opened += 1
            if on_host[v]:  # it stayed in an earlier gap, and the host has it still
                continue
            on_host[v] = True
            out = max(now, there[v], out) + size[v] * link[0] + link[2]
            left[v] = out
            if not link[3]:
                back = out
            state[g] = COPYING
            flying[last] = g
            last += 1
            rows[m, 0], rows[m, 1] = OFFLOAD, v
            m += 1
    return rows[:m], max(now, out, back), state == BACK
