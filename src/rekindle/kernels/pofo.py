"""Least time of a chain whose kept values may be copied to the host: the fluid model of `solvers.pofo`.

The first forward goes through the stages from left to right. At stage i it either saves all that its backward reads, or passes
stages i to j for their outputs alone, which backward makes again from the input of i. The bytes that then stay from forward to
backward (the input of stage i; after a saved stage, all that it saved) are kept on the device or copied to the host and back.

V(i, a, p, b) is the least time that is left when forward comes to stage i, with backward of stages from i on, where

    a : bytes that stay on the device until the backward of earlier stages.
    p : bytes of earlier stages that still wait to be copied to the host.
    b : bytes of earlier stages that must be back when the backward of stage i has ended.

Copies are a fluid: all the time, bytes leave, or come back, at the rate of the link. Forward waits until there is room beside a
and what is left of p. Backward is the same seen from its end: a stage ends so early that what is still missing of b can come
after it. Stages that are passed run forward and backward again as in `kernels.rotor`, in the memory that a, the input, and a
part of b leave: as large a part as makes the run and the wait for the other part shortest. So do the last stages of all; there
all of p leaves before and b comes after, or both go on meanwhile.

One table answers for every memory up to the largest: less memory is a larger a. a, p and b are counted in slots; a is rounded
up, and V is interpolated between slots of p and b. O(n^2 slots^3).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiled import entry, inner
from .rotor import Stages, row

SAVE, PASS, REST = 0, 1, 2  # what forward does at a stage: save it, pass stages from it on, or end among the last ones


class Model(NamedTuple):
    """n stages and a link; bytes and seconds are float64.

    stages : one level of `kernels.rotor`, of one option each.
    table, fine : its times as `kernels.rotor.solve` gives them, and the bytes of their slots.
    input : [2, n]; bytes of the input of each stage that backward reads, and of all that a saved stage before it has saved.
    unread : [n]; bytes of the input that backward does not read, so that only a second forward needs them.
    unit : bytes of a slot of V. slots : how many there are.
    out, back : bytes per second to the host and back.
    """

    stages: Stages
    table: np.ndarray
    fine: float
    input: np.ndarray
    unread: np.ndarray
    unit: float
    slots: int
    out: float
    back: float


class Ways(NamedTuple):
    """The ways in which forward may run from one stage on: way 0 saves the stage, way c > 0 passes c stages.

    ahead, left : [ways, 2, p]; seconds of forward, and what is left of p after it; [., 1, .] where the input is copied too.
    behind : [ways, b]; seconds that the backward of the stages of a way takes.
    """

    ahead: np.ndarray
    left: np.ndarray
    behind: np.ndarray


@inner
def _room(n, count):
    """Room for the ways at any stage, for `count` numbers of bytes each."""
    return Ways(np.empty((n + 1, 2, count)), np.empty((n + 1, 2, count)), np.empty((n + 1, count)))


@inner
def _count(m, i):
    """How many ways there are at stage i; at the last one none."""
    n = len(m.unread)
    return n - i if i < n - 1 else 0


@inner
def _stage(room, waiting, own, rate, seconds):
    """(seconds, bytes that still wait) of a stage beside which `room` bytes may wait to be copied.

    own : bytes that the stage itself reads: their copy may begin with it.
    """
    if room < 0:
        return np.inf, 0.0
    seconds += max(0.0, waiting - room) / rate
    return seconds, max(0.0, waiting + own - seconds * rate)


@inner
def _alone(m, first, last, room):
    """(seconds, slots of the table) to run stages forward and backward in `room` bytes; infinite where that is too little."""
    slots = min(int(np.floor(room / m.fine + 1e-9)), m.table.shape[1] - 1)
    return (m.table[row(first, last), slots] if slots >= 0 else np.inf), slots


@inner
def _again(m, first, last, free, b):
    """(seconds, slots of the table) to run passed stages forward and backward, and then to fetch what of b is still missing."""
    best, slots, late = np.inf, 0, 0.0
    while True:
        seconds, used = _alone(m, first, last, free - b + late)
        if seconds + late / m.back < best:
            best, slots = seconds + late / m.back, used
        if late >= b:
            return best, slots
        late = min(b, late + m.unit)


@inner
def _rest(m, first, free, p, b):
    """(seconds, slots of the table) of the last stages, with copies before and after or meanwhile."""
    copies = p / m.out + b / m.back
    apart, slots = _alone(m, first, len(m.unread) - 1, free)
    beside, fewer = _alone(m, first, len(m.unread) - 1, free - max(p, b))
    if max(copies, beside) < copies + apart:
        return max(copies, beside), fewer
    return copies + apart, slots


@inner
def _fill(ways, m, i, saved, kept, p, b):
    """The ways at stage i, for each of the bytes p and b. saved : whether the stage before is saved."""
    stages, n, size = m.stages, len(m.unread), m.input[saved, i]
    free = m.unit * m.slots - kept - size
    for way in range(_count(m, i)):
        k = i + max(0, way - 1)
        peak = (stages.save_peak[i, 0] if way == 0 else stages.passing[i, k]) + stages.gradient[n - 1]
        seconds = stages.save_time[i, 0] if way == 0 else stages.skip_time[k]
        own = size if way == 0 else size + m.unread[i]
        for copied in range(2):
            for x in range(len(p)):
                if way < 2:
                    spent, left = _stage(free - peak, p[x], copied * own, m.out, seconds)
                else:  # the input of i may be gone by now
                    spent, left = _stage(free - peak + copied * own, ways.left[way - 1, copied, x], 0.0, m.out, seconds)
                    spent += ways.ahead[way - 1, copied, x]
                ways.ahead[way, copied, x], ways.left[way, copied, x] = spent, left
        for y in range(len(b)):
            if way > 0:
                ways.behind[way, y] = _again(m, i, k, free, b[y])[0]
                continue
            room = free - stages.backward_peak[i, 0]
            ways.behind[way, y] = _stage(room, b[y], 0.0, m.back, stages.backward_time[i, 0])[0]


@inner
def _later(values, m, kept, p, b):
    """V of one stage for so many bytes. Those for which there is no slot are copied first."""
    a = int(np.ceil(kept / m.unit - 1e-9))
    if a > m.slots or values[a, 0, 0] == np.inf:
        return np.inf
    most = m.slots - a
    wait = max(0.0, p - most * m.unit) / m.out + max(0.0, b - most * m.unit) / m.back
    x, y = min(p / m.unit, most), min(b / m.unit, most)
    q, r = min(int(x), max(0, most - 1)), min(int(y), max(0, most - 1))
    x, y, q2, r2 = x - q, y - r, min(q + 1, most), min(r + 1, most)
    low = (1 - y) * values[a, q, r] + y * values[a, q, r2]
    high = (1 - y) * values[a, q2, r] + y * values[a, q2, r2]
    return wait + (1 - x) * low + x * high


@inner
def _onward(ways, m, i, saved, kept, x, y, b, way, copied):
    """(stage, a, p, b) after a way; the next stage comes after a saved one if the way is 0."""
    own = m.input[saved, i] + (m.unread[i] if way > 0 else 0.0)
    after = max(0.0, b - ways.behind[way, y] * m.back) + copied * own
    return i + max(1, way), kept + (1 - copied) * own, ways.left[way, copied, x], after


@inner
def _best(ways, m, values, i, saved, kept, x, y, p, b):
    """(seconds, way, whether the input is copied) of least time; way -1: the last stages."""
    best, chosen, copies = _rest(m, i, m.unit * m.slots - kept - m.input[saved, i], p, b)[0], -1, 0
    for way in range(_count(m, i)):
        for copied in range(2):
            seconds = ways.ahead[way, copied, x] + ways.behind[way, y]
            if seconds < best:
                stage, a, left, after = _onward(ways, m, i, saved, kept, x, y, b, way, copied)
                seconds += _later(values[stage, 1 if way == 0 else 0], m, a, left, after)
                if seconds < best:
                    best, chosen, copies = seconds, way, copied
    return best, chosen, copies


@entry
def solve(m):
    """float64 [n, 2, slots + 1, slots + 1, slots + 1]: V(i, a, p, b) in slots, in [i, 1] where stage i - 1 is saved;
    infinite where memory is missing. V(0, a, 0, 0) is the least time of the whole chain in `slots - a` slots."""
    n, k = len(m.unread), m.slots + 1
    values = np.full((n, 2, k, k, k), np.inf)
    ways = _room(n, k)
    for i in range(n - 1, -1, -1):
        for saved in range(2 if i else 1):
            for a in range(k):
                kept = a * m.unit
                if m.unit * m.slots - kept - m.input[saved, i] < 0:
                    break
                grid = np.arange(k - a) * m.unit
                _fill(ways, m, i, saved, kept, grid, grid)
                for x in range(k - a):
                    for y in range(k - a):
                        best, _, _ = _best(ways, m, values, i, saved, kept, x, y, grid[x], grid[y])
                        values[i, saved, a, x, y] = best
    return values


@entry
def path(m, values, slots):
    """(seconds, int64 [parts, 5]): what forward does, within so many slots of memory that suffice: SAVE, PASS or REST, its
    first and last stage, whether the input of the first is copied, and the slots of the table for the stages passed."""
    n = len(m.unread)
    rows, count = np.empty((n, 5), np.int64), 0
    ways, p, b = _room(n, 1), np.zeros(1), np.zeros(1)
    i, saved, total, kept = 0, 0, 0.0, (m.slots - slots) * m.unit
    while True:
        free = m.unit * m.slots - kept - m.input[saved, i]
        _fill(ways, m, i, saved, kept, p, b)
        _, way, copied = _best(ways, m, values, i, saved, kept, 0, 0, p[0], b[0])
        rows[count, 1], rows[count, 3] = i, copied
        if way < 0:
            seconds, memory = _rest(m, i, free, p[0], b[0])
            rows[count, 0], rows[count, 2], rows[count, 4] = REST, n - 1, memory
            return total + seconds, rows[: count + 1]
        stage, kept, left, after = _onward(ways, m, i, saved, kept, 0, 0, b[0], way, copied)
        rows[count, 0], rows[count, 2] = (SAVE if way == 0 else PASS), stage - 1
        rows[count, 4] = 0 if way == 0 else _again(m, i, stage - 1, free, b[0])[1]
        total += ways.ahead[way, copied, 0] + ways.behind[way, 0]
        count += 1
        p[0], b[0], i, saved = left, after, stage, (1 if way == 0 else 0)
