"""Least time for every memory, over the persistent schedules of a chain of stages with options.

Stages 0 to n - 1 run forward in order and backward in reverse. C(s, t, m) is the least time to run stages s to t
forward and backward within memory m, with the input of s and the gradient behind t at hand. Persistent: what forward
keeps stays until its backward, and until then no earlier stage runs. Then either the input of a later stage is kept,
or all that an option of stage s saves:

    C(s, t, m) = min over s' in s + 1 to t of  skip(s .. s' - 1) + C(s', t, m - hold[s, s']) + C(s, s' - 1, m),
                 min over k of                 save[s, k] + C(s + 1, t, m - saved[s, k]) + backward[s, k],
    C(s, s, m) = min over k of                 alone[s, k] + backward[s, k],

each only where m takes the peak. Memory is counted in slots of `unit` bytes, what is held rounded up.

One table answers for every memory: n (n + 1) / 2 rows of slots + 1 numbers. O(slots n^2 (n + K)).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiled import entry, inner

FORGET, KEEP_INPUT, KEEP_ALL, BACKWARD = 0, 1, 2, 3


class Stages(NamedTuple):
    """n stages, K options each; bytes are int64, times float64. A peak is of what does not lie in the input of the
    stage that C begins with. An option that a stage does not have takes infinite time.

    hold : [n, n]; hold[i, j], i < j: what keeping the input of j takes, beside the input of i.
    passing : [n, n]; passing[i, j], i <= j: peak of running j forward for its output alone, with the input of i kept;
        the gradient not counted.
    gradient : [n]; the gradient behind each stage.
    skip_time : [n]; forward for the output alone.
    saved : [n, K]; what is held from forward to backward.
    save_peak, save_time : [n, K]; forward, the output and all that is saved made; the gradient not counted.
    alone_peak, alone_time : [n, K]; forward with backward right after it, so that no output is needed; the peak is of
        both, the gradient counted, the time is of forward.
    backward_peak, backward_time : [n, K]; the peak with what is saved and the gradient.
    """

    hold: np.ndarray
    passing: np.ndarray
    gradient: np.ndarray
    skip_time: np.ndarray
    saved: np.ndarray
    save_peak: np.ndarray
    save_time: np.ndarray
    alone_peak: np.ndarray
    alone_time: np.ndarray
    backward_peak: np.ndarray
    backward_time: np.ndarray


@inner
def row(s, t):
    """Index of the row of C(s, t, .) in the table."""
    return t * (t + 1) // 2 + s


@entry
def solve(stages, unit, slots):
    """float64 [n (n + 1) / 2, slots + 1]: C(s, t, m) in row `row(s, t)`, infinite where m is too little."""
    n = len(stages.saved)
    table = np.full((n * (n + 1) // 2, slots + 1), np.inf)
    improve(table, stages, unit)
    return table


@inner
def improve(table, stages, unit):
    """Lower the times in a table to C(s, t, m) where that is less; what is in it may be gone on from."""
    n, options = stages.saved.shape
    slots = table.shape[1] - 1
    flat = np.full(len(table), slots)  # more memory than that changes nothing in the row
    for t in range(n):
        gradient = stages.gradient[t]
        for s in range(t, -1, -1):
            best = table[row(s, t)]
            for k in range(options):
                if s == t:
                    need = _slots(stages.alone_peak[s, k], unit)
                    time = stages.alone_time[s, k] + stages.backward_time[s, k]
                    for m in range(need, slots + 1):
                        best[m] = min(best[m], time)
                    continue
                held = _slots(stages.saved[s, k], unit)
                peak = max(stages.save_peak[s, k] + gradient, stages.backward_peak[s, k])
                time = stages.save_time[s, k] + stages.backward_time[s, k]
                rest = table[row(s + 1, t)]
                for m in range(max(held, _slots(peak, unit)), slots + 1):
                    best[m] = min(best[m], time + rest[m - held])
            time, peak = 0.0, 0
            for k in range(s + 1, t + 1):
                time += stages.skip_time[k - 1]
                peak = max(peak, stages.passing[s, k - 1] + gradient)
                held = _slots(stages.hold[s, k], unit)
                later, earlier = row(k, t), row(s, k - 1)
                begin = max(held, _slots(peak, unit))
                end = min(slots, max(begin, held + flat[later], flat[earlier])) + 1
                if begin < end:
                    total = table[later, begin - held : end - held], table[earlier, begin:end]
                    _improve(best, begin, time, *total)
            m = slots
            while m > 0 and best[m - 1] == best[slots]:
                m -= 1
            flat[row(s, t)] = m


@inner
def _improve(best, begin, time, later, earlier):
    """best[m] = min(best[m], time + later + earlier) from `begin` on, where both stay what they are at their ends.
    All three fall with m."""
    part = best[begin : begin + len(later)]
    for m in range(len(part)):
        total = time + later[m] + earlier[m]
        part[m] = total if total < part[m] else part[m]
    least = time + later[-1] + earlier[-1]
    m = begin + len(part)
    while m < len(best) and best[m] > least:
        best[m] = least
        m += 1


@inner
def longer(found, count):
    """Twice as many rows, the first of them those that are there."""
    rows = np.empty((2 * len(found), found.shape[1]), np.int64)
    for i in range(count):
        for j in range(found.shape[1]):
            rows[i, j] = found[i, j]
    return rows


@inner
def _put(rows, i, a, b, c):
    """Row i becomes (a, b, c); a row that is set to a tuple takes numba longer to compile."""
    rows[i, 0], rows[i, 1], rows[i, 2] = a, b, c


@entry
def sequence(stages, unit, table, memory):
    """int64 [operations, 3]: what (KEEP_INPUT: the input of the stage is kept and no more), stage, option of the least
    time in `memory` slots; the time must be finite."""
    n = stages.saved.shape[0]
    found = np.empty((4 * n, 3), np.int64)
    count = 0
    # To do, last first: (s, t, m) to take apart, or (-1, stage, option) to run backward.
    stack = np.empty((3 * n + 3, 3), np.int64)
    _put(stack, 0, 0, n - 1, memory)
    top = 1
    while top > 0:
        top -= 1
        s, t, m = stack[top, 0], stack[top, 1], stack[top, 2]
        if count + n > len(found):
            found = longer(found, count)
        if s < 0:
            _put(found, count, BACKWARD, t, m)
            count += 1
            continue
        split, option, _ = choice(stages, unit, table, s, t, m)
        if split < 0:
            _put(found, count, KEEP_ALL, s, option)
            count += 1
            _put(stack, top, -1, s, option)
            top += 1
            if s < t:
                _put(stack, top, s + 1, t, m - _slots(stages.saved[s, option], unit))
                top += 1
            continue
        for stage in range(s, split):
            _put(found, count, KEEP_INPUT if stage == s else FORGET, stage, 0)
            count += 1
        _put(stack, top, s, split - 1, m)
        _put(stack, top + 1, split, t, m - _slots(stages.hold[s, split], unit))
        top += 2
    return found[:count]


@inner
def choice(stages, unit, table, s, t, m):
    """(split, option, time) that gives C(s, t, m): the later stage whose input is kept, or else -1 and the option of
    s."""
    options = stages.saved.shape[1]
    gradient = stages.gradient[t]
    least, split, option = np.inf, -1, 0
    for k in range(options):
        if s == t:
            held, peak = 0, stages.alone_peak[s, k]
            time = stages.alone_time[s, k] + stages.backward_time[s, k]
        else:
            held = _slots(stages.saved[s, k], unit)
            peak = max(stages.save_peak[s, k] + gradient, stages.backward_peak[s, k])
            time = stages.save_time[s, k] + stages.backward_time[s, k]
        if m >= max(held, _slots(peak, unit)):
            if s < t:
                time += table[row(s + 1, t), m - held]
            if time < least:
                least, option = time, k
    time, peak = 0.0, 0
    for k in range(s + 1, t + 1):
        time += stages.skip_time[k - 1]
        peak = max(peak, stages.passing[s, k - 1] + gradient)
        held = _slots(stages.hold[s, k], unit)
        if m >= max(held, _slots(peak, unit)):
            total = time + table[row(k, t), m - held] + table[row(s, k - 1), m]
            if total < least:
                least, split = total, k
    return split, option, least


@inner
def _slots(size, unit):
    return (size + unit - 1) // unit
