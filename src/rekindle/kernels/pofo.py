"""Least time of a chain whose kept values may be copied to the host: the fluid model of `solvers.pofo`.

The first forward goes through the stages from left to right. At stage i it either saves all that its backward reads, or passes
stages i to j for their outputs alone, which backward makes again from the input of i. What then stays from forward to backward
(the input of stage i; after a saved stage, all that it saved) is kept on the device or copied to the host and back.

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
    """What forward may do at a stage: way 0 saves it, way c > 0 passes c stages from it on.

    ahead, left : [ways, 2, p]; seconds of forward, and what is left of p after it; [., 1, .] where the input is copied too.
    behind : [ways, b]; seconds of the backward of these stages.
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
def _again(m, first, last, free, b):
    """(seconds, slots of memory) to run stages forward and backward again, and to fetch meanwhile what may then be missing."""
    best, best_slots, late = np.inf, 0, 0.0
    while True:
        slots = int(np.floor((free - b + late) / m.fine + 1e-9))
        if slots >= 0:
            slots = min(slots, m.table.shape[1] - 1)
            seconds = m.table[row(first, last), slots] + late / m.back
            if seconds < best:
                best, best_slots = seconds, slots
        if late >= b:
            return best, best_slots
        late = min(b, late + m.unit)


@inner
def _rest(m, first, free, p, b):
    """(seconds, slots of memory) of the last stages."""
    last, most = len(m.unread) - 1, m.table.shape[1] - 1
    copies = p / m.out + b / m.back
    alone, beside = int(np.floor(free / m.fine + 1e-9)), int(np.floor((free - max(p, b)) / m.fine + 1e-9))
    best, slots = np.inf, min(alone, most)
    if alone >= 0:
        best = copies + m.table[row(first, last), slots]
    if beside >= 0:
        seconds = max(copies, m.table[row(first, last), min(beside, most)])
        if seconds < best:
            best, slots = seconds, min(beside, most)
    return best, slots


@inner
def _fill(ways, m, i, saved, kept, p, b):
    """The ways at stage i, for each of the bytes p and b. saved : whether the stage before is saved."""
    stages, n, size = m.stages, len(m.unread), m.input[saved, i]
    free = m.unit * m.slots - kept - size
    waiting_gradient = stages.gradient[n - 1]
    for way in range(_count(m, i)):
        k = i + max(0, way - 1)
        peak = (stages.save_peak[i, 0] if way == 0 else stages.passing[i, k]) + waiting_gradient
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
            if way == 0:
                ways.behind[way, y] = _stage(
                    free - stages.backward_peak[i, 0], b[y], 0.0, m.back, stages.backward_time[i, 0]
                )[0]
            else:
                ways.behind[way, y] = _again(m, i, k, free, b[y])[0]


@inner
def _cell(slots, kept, p, b):
    """Where V stands for so many slots."""
    width = slots - kept + 1
    before = (slots + 1) * (slots + 2) * (2 * slots + 3) // 6 - width * (width + 1) * (2 * width + 1) // 6
    return before + p * width + b


@inner
def _later(values, m, kept, p, b):
    """V of one stage for so many bytes. What no slot is left for is copied first."""
    a = int(np.ceil(kept / m.unit - 1e-9))
    if a > m.slots or values[_cell(m.slots, a, 0, 0)] == np.inf:
        return np.inf
    most = m.slots - a
    wait = max(0.0, p - most * m.unit) / m.out + max(0.0, b - most * m.unit) / m.back
    x, y = min(p / m.unit, most), min(b / m.unit, most)
    q, r = min(int(x), max(0, most - 1)), min(int(y), max(0, most - 1))
    x, y, wide = x - q, y - r, min(1, most)
    low = (1 - y) * values[_cell(m.slots, a, q, r)] + y * values[_cell(m.slots, a, q, r + wide)]
    high = (1 - y) * values[_cell(m.slots, a, q + wide, r)] + y * values[_cell(m.slots, a, q + wide, r + wide)]
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
    """float64 [n, 2, cells]: V(i, a, p, b), with a saved stage before i in [i, 1]. Its cells are those of `_cell`."""
    n = len(m.unread)
    values = np.full((n, 2, _cell(m.slots, m.slots, 0, 0) + 1), np.inf)
    ways = _room(n, m.slots + 1)
    for i in range(n - 1, -1, -1):
        for saved in range(2 if i else 1):
            for a in range(m.slots + 1):
                kept = a * m.unit
                if m.unit * m.slots - kept - m.input[saved, i] < 0:
                    break
                grid = np.arange(m.slots - a + 1) * m.unit
                _fill(ways, m, i, saved, kept, grid, grid)
                for x in range(len(grid)):
                    for y in range(len(grid)):
                        values[i, saved, _cell(m.slots, a, x, y)] = _best(
                            ways, m, values, i, saved, kept, x, y, grid[x], grid[y]
                        )[0]
    return values


@entry
def times(values, slots):
    """float64 [slots + 1]: the least time of the whole chain with so many slots of memory."""
    found = np.empty(slots + 1)
    for a in range(slots + 1):
        found[slots - a] = values[0, 0, _cell(slots, a, 0, 0)]
    return found


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
