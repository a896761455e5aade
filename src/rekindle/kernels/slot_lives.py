"""When values live in a sequence of runs, and the memory of every slot (see `sequence`).

Arguments that functions share:

s : `slots.Sequence`; changed in place. ops : `slots.Ops`. v : a value. t : a slot. event, p : rows of `Sequence.event`.
"""

from __future__ import annotations

import numpy as np

from .compiled import inner
from .slots import ADD, AFTER, BEFORE, END, KEEP, MADE, MOST, NODE, NONE, OP, OUT, OVER, PRIOR, SHARED, SIZE, SLOT


@inner
def add(s, left, right, x):
    """Add x bytes to the memory of slots left to right, both included."""
    if x == 0 or left > right:
        return
    n = len(s.slot)
    lo, hi = left + n, right + n + 1
    while lo < hi:
        if lo & 1:
            s.tree[lo, MOST] += x
            s.tree[lo, ADD] += x
            lo += 1
        if hi & 1:
            hi -= 1
            s.tree[hi, MOST] += x
            s.tree[hi, ADD] += x
        lo >>= 1
        hi >>= 1
    a, b = (left + n) >> 1, (right + n) >> 1
    if left < right:
        while a != b:
            _gather(s, a)
            _gather(s, b)
            a >>= 1
            b >>= 1
        _gather(s, a)  # may be a node that was added to as a whole: the nodes above it change, whatever is found here
        a >>= 1
    while a and _gather(s, a):
        a >>= 1


@inner
def _gather(s, i):
    """Find the most memory below node i again; whether it has changed."""
    most = max(s.tree[2 * i, MOST], s.tree[2 * i + 1, MOST]) + s.tree[i, ADD]
    changed = most != s.tree[i, MOST]
    s.tree[i, MOST] = most
    return changed


@inner
def peak_slot(s):
    """A slot with the most memory."""
    n, i = len(s.slot), 1
    while i < n:
        i = 2 * i if s.tree[2 * i, MOST] >= s.tree[2 * i + 1, MOST] else 2 * i + 1
    return i - n


@inner
def production_before(s, v, t):
    """The last production of v in a slot before t, or NONE."""
    found = NONE
    e = s.head[v]
    while e != NONE and s.event[e, SLOT] < t:
        if s.event[e, MADE]:
            found = e
        e = s.event[e, AFTER]
    return found


@inner
def life_end(s, p, v, ops):
    """The last slot of the life of v that production p begins."""
    last = p
    e = s.event[p, AFTER]
    while e != NONE and not s.event[e, MADE]:
        last = e
        e = s.event[e, AFTER]
    return s.counts[END] if e == NONE and ops.value[v, KEEP] else s.event[last, SLOT]


@inner
def _link(s, v, event, t):
    """Put an event of v at slot t into the list of v."""
    s.event[event, SLOT] = t
    before, e = NONE, s.head[v]
    while e != NONE and s.event[e, SLOT] < t:
        before, e = e, s.event[e, AFTER]
    s.event[event, PRIOR], s.event[event, AFTER] = before, e
    if e != NONE:
        s.event[e, PRIOR] = event
    if before == NONE:
        s.head[v] = event
    else:
        s.event[before, AFTER] = event


@inner
def _unlink(s, v, event):
    """Take an event of v out of the list of v."""
    before, e = s.event[event, PRIOR], s.event[event, AFTER]
    if before == NONE:
        s.head[v] = e
    else:
        s.event[before, AFTER] = e
    if e != NONE:
        s.event[e, PRIOR] = before


@inner
def refresh(s, t, ops):
    """Find again how many bytes the run in slot t spares by writing over a dying input, as `Schedule.from_runs` has it."""
    if t < 0 or t >= len(s.slot):
        return
    r = s.slot[t]
    spared = 0
    if r != NONE:
        o = s.run[r, OP]
        if ops.op[o, BEFORE] > ops.op[o, OVER]:
            first = ops.ids[ops.op[o, OUT]]
            if life_end(s, np.int64(s.run[r, NODE]), first, ops) > t:
                for q in range(ops.op[o, OVER], ops.op[o, BEFORE]):
                    v = ops.ids[q]
                    if ops.value[v, SHARED] or ops.value[v, SIZE] < ops.value[first, SIZE]:
                        continue
                    p = production_before(s, v, t)
                    if life_end(s, p, v, ops) == t:
                        spared = ops.value[first, SIZE]
                        break
    if spared != s.saved[t]:
        add(s, t, t, s.saved[t] - spared)
        s.saved[t] = spared


@inner
def use(s, v, event, t, ops):
    """Enter a use of v at slot t."""
    p = production_before(s, v, t)
    end = life_end(s, p, v, ops)
    _link(s, v, event, t)
    if t > end:
        add(s, end + 1, t, ops.value[v, SIZE])
        refresh(s, end, ops)


@inner
def unuse(s, v, event, t, ops):
    """Take out a use of v at slot t."""
    p = production_before(s, v, t)
    end = life_end(s, p, v, ops)
    _unlink(s, v, event)
    now = life_end(s, p, v, ops)
    if now < end:
        add(s, now + 1, end, -ops.value[v, SIZE])
        refresh(s, now, ops)


@inner
def produce(s, v, event, t, ops):
    """Enter a production of v at slot t: a life that began before ends with the last use before it."""
    p = production_before(s, v, t)
    end = life_end(s, p, v, ops) if p != NONE else NONE
    _link(s, v, event, t)
    if end > t:  # the life that covered t begins at t now
        now = life_end(s, p, v, ops)
        add(s, now + 1, t - 1, -ops.value[v, SIZE])
        refresh(s, now, ops)
        refresh(s, end, ops)
    else:
        add(s, t, life_end(s, event, v, ops), ops.value[v, SIZE])


@inner
def unproduce(s, v, event, t, ops):
    """Take out a production of v at slot t: the life before it goes on."""
    p = production_before(s, v, t)
    end = life_end(s, event, v, ops)
    before = life_end(s, p, v, ops) if p != NONE else NONE
    _unlink(s, v, event)
    if end > t:
        add(s, before + 1, t - 1, ops.value[v, SIZE])
        refresh(s, before, ops)
        refresh(s, end, ops)
    else:
        add(s, t, t, -ops.value[v, SIZE])
