"""A sequence of runs whose peak is known after every change in O(log n); annealing over sequences is built on it.

Runs stand in slots, most of them empty, so that a run can be put between others. Each value has a list of its events in
order of slots: productions and uses. A production begins a life, which ends with the last use before the next production
(or never, for values that must be kept). So every sequence in which each op finds its inputs made before it is valid, and
adding a run or taking out a repeat moves the end of a few lives. Memory per slot lies in a tree with range-add and
range-max: Imanishi et al., NeurIPS 2023.

Runs and slots are stored as int32; a number from there becomes int64 before it goes into a call, so that each function is
compiled once.
"""

from __future__ import annotations

import numpy as np

from .borrow import borrow
from .compiled import entry, inner
from .slot_lives import add, life_end, produce, refresh, unproduce, unuse, use
from .slots import (
    AFTER,
    AGAIN,
    AT,
    BEFORE,
    BOUNDARY,
    END,
    FIRST,
    IN,
    LATER,
    MADE,
    N_AGAIN,
    NODE,
    NODE_TOP,
    NONE,
    OP,
    OUT,
    OVER,
    PRIOR,
    RUN,
    RUN_TOP,
    SIZE,
    SLOT,
    SLOTS_PER_RUN,
    SPARE,
    WORKSPACE,
    Ops,
    Sequence,
)


@inner
def insert(s, o, t, ops):
    """Run op o in the empty slot t; the run's id, or NONE where there is no record left for it.

    The inputs of o must be made before t; where o runs already, its first run must lie before t.
    """
    r = s.changing[o, SPARE]
    degree = ops.op[o, OVER] - ops.op[o, OUT]
    if r != NONE:
        s.changing[o, SPARE] = s.run[r, AGAIN]
    else:
        if s.counts[RUN_TOP] == len(s.run) or s.counts[NODE_TOP] + degree > len(s.event):
            return NONE
        r = s.counts[RUN_TOP]
        s.counts[RUN_TOP] += 1
        s.run[r, OP] = o
        s.run[r, NODE] = s.counts[NODE_TOP]
        s.counts[NODE_TOP] += degree
        for k in range(s.run[r, NODE], s.run[r, NODE] + degree):
            s.event[k, RUN] = r
            s.event[k, MADE] = k - s.run[r, NODE] < ops.op[o, IN] - ops.op[o, OUT]
    s.run[r, AT] = t
    s.slot[t] = r
    if s.changing[o, FIRST] == NONE:
        s.changing[o, FIRST] = r
        s.run[r, AGAIN] = NONE
    else:
        s.run[r, AGAIN] = s.counts[N_AGAIN]
        s.repeats[s.counts[N_AGAIN]] = r
        s.counts[N_AGAIN] += 1
    e = np.int64(s.run[r, NODE])
    for j in range(ops.op[o, OUT], ops.op[o, IN]):
        produce(s, ops.ids[j], e, t, ops)
        e += 1
    for j in range(ops.op[o, IN], ops.op[o, OVER]):
        use(s, ops.ids[j], e, t, ops)
        e += 1
    add(s, t, t, ops.op[o, WORKSPACE])
    s.cost[0] += ops.weights[o]
    refresh(s, t, ops)
    return r


@inner
def remove(s, r, ops):
    """Take out run r, a repeat."""
    o, t = s.run[r, OP], np.int64(s.run[r, AT])
    if s.saved[t]:
        add(s, t, t, s.saved[t])
        s.saved[t] = 0
    s.slot[t] = NONE
    e = np.int64(s.run[r, NODE])
    for j in range(ops.op[o, OUT], ops.op[o, IN]):
        unproduce(s, ops.ids[j], e, t, ops)
        e += 1
    for j in range(ops.op[o, IN], ops.op[o, OVER]):
        unuse(s, ops.ids[j], e, t, ops)
        e += 1
    add(s, t, t, -ops.op[o, WORKSPACE])
    s.cost[0] -= ops.weights[o]
    k = s.run[r, AGAIN]
    s.counts[N_AGAIN] -= 1
    last = s.repeats[s.counts[N_AGAIN]]
    s.repeats[k] = last
    s.run[last, AGAIN] = k
    s.run[r, AGAIN] = NONE
    s.run[r, AT] = NONE
    s.run[r, AGAIN] = s.changing[o, SPARE]
    s.changing[o, SPARE] = r


@inner
def useless(s, r, ops):
    """Whether run r is a repeat none of whose outputs is used."""
    if s.run[r, AT] == NONE or s.run[r, AGAIN] == NONE:
        return False
    e = np.int64(s.run[r, NODE])
    o = s.run[r, OP]
    for j in range(ops.op[o, OUT], ops.op[o, IN]):
        if life_end(s, e, ops.ids[j], ops) > s.run[r, AT]:
            return False
        e += 1
    return True


@inner
def leeway(s, r, ops):
    """(first, last) slot to which run r may move without passing an event that it needs or that needs it."""
    o, t = s.run[r, OP], s.run[r, AT]
    first, last = 0, s.counts[END] - 1
    border = s.counts[BOUNDARY]
    e = np.int64(s.run[r, NODE])
    for _ in range(ops.op[o, OUT], ops.op[o, IN]):
        if s.event[e, PRIOR] != NONE:
            first = max(first, s.event[s.event[e, PRIOR], SLOT] + 1)
        if s.event[e, AFTER] != NONE:
            last = min(last, s.event[s.event[e, AFTER], SLOT] - 1)
        e += 1
    for _ in range(ops.op[o, IN], ops.op[o, OVER]):
        p = s.event[e, PRIOR]
        while p != NONE and not s.event[p, MADE]:
            p = s.event[p, PRIOR]
        first = max(first, s.event[p, SLOT] + 1)
        q = s.event[e, AFTER]
        while q != NONE and not s.event[q, MADE]:
            q = s.event[q, AFTER]
        if q != NONE:
            last = min(last, s.event[q, SLOT] - 1)
        e += 1
    if s.run[r, AGAIN] == NONE:  # the first run of its op: it keeps its side and its place among first runs
        if border != NONE:
            if o == ops.boundary:
                return t, t
            if t < border:
                last = min(last, border - 1)
            else:
                first = max(first, border + 1)
        for j in range(ops.op[o, BEFORE], ops.op[o, LATER]):
            first = max(first, s.run[s.changing[ops.ids[j], FIRST], AT] + 1)
        for j in range(ops.op[o, LATER], ops.op[o + 1, OUT]):
            if s.changing[ops.ids[j], FIRST] != NONE:
                last = min(last, s.run[s.changing[ops.ids[j], FIRST], AT] - 1)
    else:
        first = max(first, s.run[s.changing[o, FIRST], AT] + 1)
    return first, last


@inner
def move(s, r, t, ops):
    """Move run r to the empty slot t, within its leeway."""
    o, old = s.run[r, OP], np.int64(s.run[r, AT])
    if s.saved[old]:
        add(s, old, old, s.saved[old])
        s.saved[old] = 0
    add(s, old, old, -ops.op[o, WORKSPACE])
    add(s, t, t, ops.op[o, WORKSPACE])
    first_input = s.run[r, NODE] + ops.op[o, IN] - ops.op[o, OUT]
    # The life of an input may end elsewhere; the life of an output begins elsewhere.
    e = first_input
    for j in range(ops.op[o, IN], ops.op[o, OVER]):
        v = ops.ids[j]
        unuse(s, v, e, old, ops)
        e += 1
    s.slot[old] = NONE
    e = np.int64(s.run[r, NODE])
    for j in range(ops.op[o, OUT], ops.op[o, IN]):
        v = ops.ids[j]
        if life_end(s, e, v, ops) > old:
            if t < old:
                add(s, t, old - 1, ops.value[v, SIZE])
            else:
                add(s, old, t - 1, -ops.value[v, SIZE])
        else:
            add(s, old, old, -ops.value[v, SIZE])
            add(s, t, t, ops.value[v, SIZE])
        s.event[e, SLOT] = t
        e += 1
    s.run[r, AT] = t
    s.slot[t] = r
    e = first_input
    for j in range(ops.op[o, IN], ops.op[o, OVER]):
        use(s, ops.ids[j], e, t, ops)
        e += 1
    refresh(s, t, ops)
    e = np.int64(s.run[r, NODE])
    for j in range(ops.op[o, OUT], ops.op[o, IN]):
        end = life_end(s, e, ops.ids[j], ops)
        if end > t:
            refresh(s, end, ops)
        e += 1


@inner
def empty_before(s, t, most):
    """The nearest empty slot before t with at most `most` runs between, or NONE."""
    passed = 0
    t -= 1
    while t >= 0:
        if s.slot[t] == NONE:
            return t
        passed += 1
        if passed > most:
            return NONE
        t -= 1
    return NONE


@inner
def runs_of(s, out):
    """Write the ops in the order in which they run to `out`; how many, or NONE where it is too short."""
    m = 0
    for t in range(len(s.slot)):
        if s.slot[t] != NONE:
            if m == len(out):
                return NONE
            out[m] = s.run[s.slot[t], OP]
            m += 1
    return m


def build(runs: np.ndarray, ops: Ops) -> Sequence:
    """A valid sequence of runs (op ids), evenly spread over its slots."""
    degree = ops.op[:-1, OVER] - ops.op[:-1, OUT]
    room = 2 * len(runs) + 4 * len(degree) + 64  # for repeats that come and go
    n_slots = 1 << int(SLOTS_PER_RUN * (len(runs) + 2)).bit_length()
    n_events = int(degree[runs].sum() + 3 * degree.sum()) + 256
    s = Sequence(
        slot=np.full(n_slots, NONE, np.int32),
        run=np.full((room, 4), NONE, np.int32),
        changing=np.full((len(degree), 2), NONE, np.int32),
        repeats=np.full(room, NONE, np.int32),
        head=np.full(len(ops.value), NONE, np.int32),
        event=np.full((n_events, 5), NONE, np.int32),
        tree=np.zeros((2 * n_slots, 2), np.int64),
        saved=np.zeros(n_slots, np.int64),
        counts=np.zeros(5, np.int64),
        cost=np.zeros(1),
    )
    s.counts[BOUNDARY] = NONE
    fill(s, runs, ops)
    return s


@entry
def fill(s, runs, ops):
    """Put runs (op ids, a valid sequence) into an empty state."""
    spread(borrow(s), borrow(runs), borrow(ops))


@inner
def spread(s, runs, ops):
    """As `fill`, for kernels."""
    n = len(s.slot)
    s.counts[END] = n - 1
    step = (n - 2) / max(1, len(runs))
    for i in range(len(runs)):
        if runs[i] == ops.boundary:
            s.counts[BOUNDARY] = int(step * (i + 0.9))
            break
    for i in range(len(runs)):
        insert(s, runs[i], int(step * (i + 0.9)), ops)
