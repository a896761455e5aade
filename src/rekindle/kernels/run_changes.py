"""Changes of a sequence of runs (see `sequence`): runs added and taken out, in elementary steps that can be undone.

Arguments that functions share:

s : `slots.Sequence`; changed in place. ops : `slots.Ops`. log : int64 [steps + 1, 3]; see `Work`.
r : a run. o : an op. v : a value. t : a slot.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiled import inner
from .sequence import empty_before, insert, move, remove, useless
from .slot_lives import life_end, production_before
from .slots import AFTER, AGAIN, AT, FIRST, IN, MADE, NONE, OP, OUT, OVER, PRODUCER, RECOMPUTE, RUN, SIZE, SLOT

INSERTED, REMOVED, MOVED = 0, 1, 2  # kinds of steps in the log
MOST_STEPS = 60  # elementary steps of one change
MOST_ADDED_RUNS = 30  # by one change
STACK_RUNS = 64  # runs, or values, of one change that are still to be looked at


class Work(NamedTuple):
    """Work space of one change."""

    log: np.ndarray  # int64 [steps + 1, 3]; [0, 0] counts the steps; then (kind, op or old slot, slot) of each
    stack: np.ndarray  # int64; runs still to be taken out
    values: np.ndarray  # int64; values still to be made,
    slots: np.ndarray  # int64; and the slots before which


@inner
def new_work():
    """Work space of the changes of one chain."""
    return Work(
        np.zeros((MOST_STEPS + 4, 3), np.int64), np.empty(STACK_RUNS, np.int64), np.empty(STACK_RUNS, np.int64),
        np.empty(STACK_RUNS, np.int64),
    )  # fmt: skip


@inner
def note(log, kind, x, t):
    """Enter a step into the log: its kind, the op or the old slot, the slot."""
    log[0, 0] += 1
    i = log[0, 0]
    log[i, 0], log[i, 1], log[i, 2] = kind, x, t


@inner
def _insert(s, o, t, ops, log):
    if log[0, 0] >= MOST_STEPS - 2:
        return False
    if insert(s, o, t, ops) == NONE:
        return False
    note(log, INSERTED, o, t)
    return True


@inner
def _remove(s, r, ops, log):
    if log[0, 0] >= MOST_STEPS - 2:
        return False
    note(log, REMOVED, np.int64(s.run[r, OP]), np.int64(s.run[r, AT]))
    remove(s, r, ops)
    return True


@inner
def undo(s, ops, log):
    """Take back all logged steps."""
    for i in range(log[0, 0], 0, -1):
        kind, x, t = log[i, 0], log[i, 1], log[i, 2]
        if kind == INSERTED:
            remove(s, np.int64(s.slot[t]), ops)
        elif kind == REMOVED:
            insert(s, x, t, ops)
        else:
            move(s, np.int64(s.slot[t]), x, ops)
    log[0, 0] = 0


@inner
def take_out(s, r, ops, work):
    """Take out repeat r, and the repeats whose outputs nothing uses then; whether the log had room."""
    log, stack = work.log, work.stack
    stack[0] = r
    top = 1
    while top:
        top -= 1
        r = stack[top]
        if s.run[r, AT] == NONE:
            continue
        o, t = s.run[r, OP], np.int64(s.run[r, AT])
        if not _remove(s, r, ops, log):
            return False
        for j in range(ops.op[o, IN], ops.op[o, OVER]):
            p = production_before(s, ops.ids[j], t)
            if useless(s, s.event[p, RUN], ops) and top < len(stack) - 1:
                stack[top] = s.event[p, RUN]
                top += 1
    return True


@inner
def make_again(s, v, t, hot_slot, ops, work):
    """Recompute v right before slot t, and by chance with it the inputs that are gone by then; whether that was possible.

    hot_slot : inputs that would have to wait there are recomputed more often.
    """
    log, values, slots = work.log, work.values, work.slots
    values[0], slots[0] = v, t
    top, added = 1, 0
    while top:
        top -= 1
        v, t = values[top], slots[top]
        o = ops.value[v, PRODUCER]
        p = production_before(s, v, t)
        if p == NONE or not ops.op[o, RECOMPUTE]:
            return False
        if added and s.event[p, SLOT] >= t - 2 and s.run[s.event[p, RUN], AGAIN] != NONE:
            continue  # another input brought it along
        e = empty_before(s, t, 6)
        if e == NONE or e <= s.event[p, SLOT] or e <= s.run[s.changing[o, FIRST], AT] or added == MOST_ADDED_RUNS:
            return False
        n = top
        for j in range(ops.op[o, IN], ops.op[o, OVER]):
            u = ops.ids[j]
            q = production_before(s, u, e)
            end = life_end(s, q, u, ops)
            if end < e and ops.op[ops.value[u, PRODUCER], RECOMPUTE] and n < len(values):
                likely = 0.9 if end < hot_slot < e else 0.5
                if np.random.random() < likely:
                    values[n], slots[n] = u, e
                    n += 1
        if not _insert(s, o, e, ops, log):
            return False
        top = n
        added += 1
        for j in range(ops.op[o, OUT], ops.op[o, IN]):
            q = production_before(s, ops.ids[j], e)
            if q != NONE and useless(s, s.event[q, RUN], ops) and not take_out(s, s.event[q, RUN], ops, work):
                return False
    return True


@inner
def use_after(s, v, t):
    """The first use of v in a slot after t if its life covers t, else NONE."""
    e = s.head[v]
    while e != NONE and s.event[e, SLOT] <= t:
        if s.event[e, SLOT] == t:
            return NONE
        e = s.event[e, AFTER]
    return NONE if e == NONE or s.event[e, MADE] or e == s.head[v] else e


@inner
def waiting(s, t, ops, hot):
    """Write to `hot` the values that wait in slot t for a later use and can be recomputed; how many."""
    k = 0
    for v in range(len(ops.value)):
        if ops.value[v, SIZE] and ops.op[ops.value[v, PRODUCER], RECOMPUTE] and use_after(s, v, t) != NONE:
            hot[k] = v
            k += 1
    return k


@inner
def longest_wait(s, v):
    """The use before which v waits longest, or NONE."""
    best, found = 1, NONE
    e = s.head[v]
    while e != NONE:
        q = s.event[e, AFTER]
        if q != NONE and not s.event[q, MADE]:
            wait = s.event[q, SLOT] - s.event[e, SLOT]
            if wait > best:
                best, found = wait, q
        e = q
    return found
