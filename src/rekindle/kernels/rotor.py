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

Forward may also save sets of values that are dear to recompute, level by level. On level 0, the only one of `solvers.rotor`,
nothing is saved beyond the above. On level l each stage that forward passes leaves behind a set of values that stays until
the backward of that stage, so the next pass of forward costs less. The sets grow with the level. C(l, s, t, m) is the least
time where the sets of level l are there already. To go on to a deeper level, forward makes the new values once:

    C(l, s, t, m) = min of C(s, t, m) on level l, and of enter(l, k, s .. t) + C(k, s, t, m) over k > l.

enter is the cost of a pass that leaves the sets of level k behind, beyond a pass that finds them. It is counted for a pass
that forgets all its stages; for stages that the same pass saves it is too much. The bytes of the sets count from stage s
on: in `hold`, `passing`, `saved` and the peaks. Ops that only the pass into a level runs count with their cost and not with
their peak, which the judge finds. O(levels slots n^2 (n + K)).
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


@inner
def stages_of(levels, level):
    """The `Stages` of one level. levels : `Stages` with one more axis, the first."""
    return Stages(
        levels.hold[level], levels.passing[level], levels.gradient[level], levels.skip_time[level], levels.saved[level],
        levels.save_peak[level], levels.save_time[level], levels.alone_peak[level], levels.alone_time[level],
        levels.backward_peak[level], levels.backward_time[level],
    )  # fmt: skip


@entry
def solve(levels, enter, unit, slots):
    """float64 [levels, n (n + 1) / 2, slots + 1]: C(l, s, t, m) in row `row(s, t)`; infinite where m is too little.

    enter : float64 [levels, levels, n + 1]; [l, k, s] is the cost for stages 0 to s - 1 to come from level l to k > l.
    """
    count, n = levels.gradient.shape
    table = np.full((count, n * (n + 1) // 2, slots + 1), np.inf)
    for level in range(count - 1, -1, -1):
        for deeper in range(level + 1, count):
            before = enter[level, deeper]
            for t in range(n):
                for s in range(t + 1):
                    into, best = before[t + 1] - before[s], table[level, row(s, t)]
                    for m in range(slots + 1):
                        best[m] = min(best[m], table[deeper, row(s, t), m] + into)
        improve(table[level], stages_of(levels, level), unit)
    return table


@inner
def _put(rows, i, a, b, c, d):
    """Row i becomes (a, b, c, d); a row that is set to a tuple takes numba two seconds longer to compile."""
    rows[i, 0], rows[i, 1], rows[i, 2], rows[i, 3] = a, b, c, d


@entry
def sequence(levels, enter, unit, table, memory, first, last):
    """int64 [operations, 4]: operation, stage, option, level, of least time for stages `first` to `last` in `memory` slots; the
    time must be finite. KEEP_INPUT: the input of the stage is kept and no more."""
    count, n = levels.gradient.shape
    found = np.empty((4 * n, 4), np.int64)
    done = 0
    stack = np.empty((3 * n + 3, 4), np.int64)  # (s, t, m, level), or (-1, stage, option, level) to run backward
    _put(stack, 0, first, last, memory, 0)
    top = 1
    while top > 0:
        top -= 1
        s, t, m, level = stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3]
        if done + n > len(found):
            found = longer(found, done)
        if s < 0:
            _put(found, done, BACKWARD, t, m, level)
            done += 1
            continue
        stages = stages_of(levels, level)
        split, option, time = choice(stages, unit, table[level], s, t, m)
        into = level
        for deeper in range(level + 1, count):
            more = table[deeper, row(s, t), m] + enter[level, deeper, t + 1] - enter[level, deeper, s]
            if more < time:
                time, into = more, deeper
        if into > level:
            _put(stack, top, s, t, m, into)
            top += 1
            continue
        if split < 0:
            _put(found, done, KEEP_ALL, s, option, level)
            done += 1
            _put(stack, top, -1, s, option, level)
            top += 1
            if s < t:
                _put(stack, top, s + 1, t, m - _slots(stages.saved[s, option], unit), level)
                top += 1
            continue
        for stage in range(s, split):
            _put(found, done, KEEP_INPUT if stage == s else FORGET, stage, 0, level)
            done += 1
        _put(stack, top, s, split - 1, m, level)
        _put(stack, top + 1, split, t, m - _slots(stages.hold[s, split], unit), level)
        top += 2
    return found[:done]
