"""The table of `rotor`, for a forward that may also save sets of values that are dear to recompute, level by level.

On level 0 nothing is saved beyond what `rotor` saves. On level l each stage that forward passes leaves behind a set of
values that stays until the backward of that stage, so the next pass of forward costs less. The sets grow with the level.
C(l, s, t, m) is the least time where the sets of level l are there already. To go on to a deeper level, forward makes the
new values once:

    C(l, s, t, m) = min of rotor's C(s, t, m) on level l, and of enter(l, k, s .. t) + C(k, s, t, m) over k > l.

enter is the cost of a pass that leaves the sets of level k behind, beyond a pass that finds them. It is counted for a pass
that forgets all its stages; for stages that the same pass saves it is too much. The bytes of the sets count from stage s
on: in `hold`, `passing`, `saved` and the peaks. Ops that only the pass into a level runs count with their cost and not with
their peak, which the judge finds. O(levels slots n^2 (n + K)).
"""

from __future__ import annotations

import numpy as np

from .compiled import entry, inner
from .rotor import BACKWARD, FORGET, KEEP_ALL, KEEP_INPUT, Stages, _slots, choice, improve, longer, row


@inner
def stages_of(levels, level):
    """The `rotor.Stages` of a level. levels : `rotor.Stages` with one more axis, the first."""
    return Stages(
        levels.hold[level], levels.passing[level], levels.gradient[level], levels.skip_time[level], levels.saved[level],
        levels.save_peak[level], levels.save_time[level], levels.alone_peak[level], levels.alone_time[level],
        levels.backward_peak[level], levels.backward_time[level],
    )  # fmt: skip


@entry
def solve(levels, enter, unit, slots):
    """float64 [levels, n (n + 1) / 2, slots + 1]: C(l, s, t, m) in row `row(s, t)`.

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
def sequence(levels, enter, unit, table, memory):
    """int64 [operations, 4]: operation (see `rotor`), stage, option, level, of least time in `memory` slots. The least time
    must be finite."""
    count, n = levels.gradient.shape
    found = np.empty((4 * n, 4), np.int64)
    done = 0
    stack = np.empty((3 * n + 3, 4), np.int64)  # (s, t, m, level), or (-1, stage, option, level) to run backward
    _put(stack, 0, 0, n - 1, memory, 0)
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
