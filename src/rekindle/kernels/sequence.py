"""A sequence of runs whose peak is known after every change in O(log n): what annealing over sequences stands on.

Runs stand in slots, most of them empty, so that a run can be put between others. Each value has the list of its events in
order of slots: productions and uses. A production begins a life, which ends with the last use before the next
production (or, for what must be kept, never), so every sequence in which each op finds its inputs made before it is valid,
and adding a run or dropping a repeat moves the end of a few lives. Memory per slot lies in a tree with range-add and
range-max: Imanishi et al., NeurIPS 2023.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from ..graph import Arrays

NONE = -1
GAP = 8  # slots per run
# Columns of the tables below.
SIZE, PRODUCER, KEEP, SHARED = 0, 1, 2, 3  # of a value
OUT, IN, OVER, BEFORE, LATER, WORKSPACE, RECOMPUTE = 0, 1, 2, 3, 4, 5, 6  # of an op
OP, AT, NODE, AGAIN = 0, 1, 2, 3  # of a run
FIRST, SPARE = 0, 1  # of an op, changing
AFTER, PRIOR, SLOT, RUN, MADE = 0, 1, 2, 3, 4  # of an event
MOST, ADD = 0, 1  # of a node of the tree
BOUNDARY, N_AGAIN, NODE_TOP, RUN_TOP, END = 0, 1, 2, 3, 4  # in `Sequence.counts`


class Ops(NamedTuple):
    """The problem, packed: a call passes every array on its own.

    value : int64 [values, 4]; bytes, the op that makes it, whether it is kept, whether nothing may be written over it.
    op : int64 [ops + 1, 7]; where its outputs, its inputs, the inputs that it may write over, and the ops that must run
        for the first time before it and after it begin in `ids` (the last end where the next op's outputs begin);
        workspace; may it run again.
    weights : float64 [ops].
    """

    value: np.ndarray
    op: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    boundary: int


class Sequence(NamedTuple):
    """The state.

    slot : run in each slot, NONE where empty.
    run : per run its op, its slot (NONE: not in use), its first event (outputs, then inputs), and its place in
        `repeats` (NONE: the first run of its op). Not in use, the last is the next unused run of the op.
    changing : per op its first run, and its first unused one.
    repeats : the runs that are repeats, in no order.
    head : per value its first event.
    event : the next and the one before of its value, its slot, its run, whether it is a production.
    tree : per node the most memory below it, and what is added to all below it. saved : per slot the bytes that writing
        in place spares.
    counts : see BOUNDARY ... END. cost : [1], the sum of weights.
    """

    slot: np.ndarray
    run: np.ndarray
    changing: np.ndarray
    repeats: np.ndarray
    head: np.ndarray
    event: np.ndarray
    tree: np.ndarray
    saved: np.ndarray
    counts: np.ndarray
    cost: np.ndarray


def pack(a: Arrays, weights: np.ndarray, shared: np.ndarray, before_ptr: np.ndarray, before_ids: np.ndarray) -> Ops:
    """A problem whose values are all made by ops."""
    n = len(a.workspace)
    value = np.stack([a.bytes, a.producer, a.keep.astype(np.int64), shared.astype(np.int64)], axis=1)
    op = np.zeros((n + 1, 7), np.int64)
    tail = np.repeat(np.arange(n), np.diff(before_ptr))
    by = np.argsort(before_ids, kind="stable")
    later_ptr, later_ids = np.searchsorted(before_ids[by], np.arange(n + 1)), tail[by]
    rows: list[np.ndarray] = []
    at = 0
    for o in range(n):
        for column, (ptr, ids) in enumerate(
            (
                (a.out_ptr, a.out_ids),
                (a.in_ptr, a.in_ids),
                (a.inplace_ptr, a.inplace_ids),
                (before_ptr, before_ids),
                (later_ptr, later_ids),
            )
        ):
            rows.append(ids[ptr[o] : ptr[o + 1]])
            op[o, column] = at
            at += len(rows[-1])
    op[n, : LATER + 1] = at
    op[:n, WORKSPACE], op[:n, RECOMPUTE] = a.workspace, a.recompute
    ids = np.concatenate(rows) if rows else np.empty(0, np.int64)
    return Ops(np.ascontiguousarray(value, np.int64), op, ids.astype(np.int64), weights, int(a.boundary))


# -- the tree ----------------------------------------------------------------------------------------------------------
@nb.njit(cache=True, nogil=True)
def _add(s, left, right, x):
    """Add x to slots left to right, both included."""
    if x == 0 or left > right:
        return
    n = len(s.slot)
    lo, hi = left + n, right + n + 1
    a, b = lo, hi - 1
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
    a >>= 1
    while a:
        s.tree[a, MOST] = max(s.tree[2 * a, MOST], s.tree[2 * a + 1, MOST]) + s.tree[a, ADD]
        a >>= 1
    b >>= 1
    while b:
        s.tree[b, MOST] = max(s.tree[2 * b, MOST], s.tree[2 * b + 1, MOST]) + s.tree[b, ADD]
        b >>= 1


@nb.njit(cache=True, nogil=True)
def peak_slot(s):
    """A slot with the most memory."""
    n, i = len(s.slot), 1
    while i < n:
        i = 2 * i if s.tree[2 * i, MOST] >= s.tree[2 * i + 1, MOST] else 2 * i + 1
    return i - n


# -- lives -------------------------------------------------------------------------------------------------------------
@nb.njit(cache=True, nogil=True)
def production_before(s, v, t):
    """The last production of v in a slot before t, or NONE."""
    found = NONE
    e = s.head[v]
    while e != NONE and s.event[e, SLOT] < t:
        if s.event[e, MADE]:
            found = e
        e = s.event[e, AFTER]
    return found


@nb.njit(cache=True, nogil=True)
def life_end(s, p, v, ops):
    """The last slot of the life that production p of v begins."""
    last = p
    e = s.event[p, AFTER]
    while e != NONE and not s.event[e, MADE]:
        last = e
        e = s.event[e, AFTER]
    return s.counts[END] if e == NONE and ops.value[v, KEEP] else s.event[last, SLOT]


@nb.njit(cache=True, nogil=True)
def _link(s, v, event, t):
    """Put an event into the list of its value."""
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


@nb.njit(cache=True, nogil=True)
def _unlink(s, v, event):
    before, e = s.event[event, PRIOR], s.event[event, AFTER]
    if before == NONE:
        s.head[v] = e
    else:
        s.event[before, AFTER] = e
    if e != NONE:
        s.event[e, PRIOR] = before


@nb.njit(cache=True, nogil=True)
def refresh(s, t, ops):
    """Say anew what the run in slot t spares by writing over a dying input; as `Schedule.from_runs` allows it."""
    if t < 0 or t >= len(s.slot):
        return
    r = s.slot[t]
    spared = 0
    if r != NONE:
        o = s.run[r, OP]
        if ops.op[o, BEFORE] > ops.op[o, OVER]:
            first = ops.ids[ops.op[o, OUT]]
            if life_end(s, s.run[r, NODE], first, ops) > t:
                for q in range(ops.op[o, OVER], ops.op[o, BEFORE]):
                    v = ops.ids[q]
                    if ops.value[v, SHARED] or ops.value[v, SIZE] < ops.value[first, SIZE]:
                        continue
                    p = production_before(s, v, t)
                    if life_end(s, p, v, ops) == t:
                        spared = ops.value[first, SIZE]
                        break
    if spared != s.saved[t]:
        _add(s, t, t, s.saved[t] - spared)
        s.saved[t] = spared


@nb.njit(cache=True, nogil=True)
def _use(s, v, event, t, ops):
    p = production_before(s, v, t)
    end = life_end(s, p, v, ops)
    _link(s, v, event, t)
    if t > end:
        _add(s, end + 1, t, ops.value[v, SIZE])
        refresh(s, end, ops)


@nb.njit(cache=True, nogil=True)
def _unuse(s, v, event, t, ops):
    p = production_before(s, v, t)
    end = life_end(s, p, v, ops)
    _unlink(s, v, event)
    now = life_end(s, p, v, ops)
    if now < end:
        _add(s, now + 1, end, -ops.value[v, SIZE])
        refresh(s, now, ops)


@nb.njit(cache=True, nogil=True)
def _produce(s, v, event, t, ops):
    p = production_before(s, v, t)
    end = life_end(s, p, v, ops) if p != NONE else NONE
    _link(s, v, event, t)
    if end > t:  # what lived there begins anew
        now = life_end(s, p, v, ops)
        _add(s, now + 1, t - 1, -ops.value[v, SIZE])
        refresh(s, now, ops)
        refresh(s, end, ops)
    else:
        _add(s, t, life_end(s, event, v, ops), ops.value[v, SIZE])


@nb.njit(cache=True, nogil=True)
def _unproduce(s, v, event, t, ops):
    p = production_before(s, v, t)
    end = life_end(s, event, v, ops)
    before = life_end(s, p, v, ops) if p != NONE else NONE
    _unlink(s, v, event)
    if end > t:
        _add(s, before + 1, t - 1, ops.value[v, SIZE])
        refresh(s, before, ops)
        refresh(s, end, ops)
    else:
        _add(s, t, t, -ops.value[v, SIZE])


# -- runs --------------------------------------------------------------------------------------------------------------
@nb.njit(cache=True, nogil=True)
def insert(s, o, t, ops):
    """Run op o in the empty slot t; the run's id, or NONE where there is no record left for it.

    Its inputs must be made before t; where o runs already, its first run must lie before t.
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
        for e in range(s.run[r, NODE], s.run[r, NODE] + degree):
            s.event[e, RUN] = r
            s.event[e, MADE] = e - s.run[r, NODE] < ops.op[o, IN] - ops.op[o, OUT]
    s.run[r, AT] = t
    s.slot[t] = r
    if s.changing[o, FIRST] == NONE:
        s.changing[o, FIRST] = r
        s.run[r, AGAIN] = NONE
    else:
        s.run[r, AGAIN] = s.counts[N_AGAIN]
        s.repeats[s.counts[N_AGAIN]] = r
        s.counts[N_AGAIN] += 1
    e = s.run[r, NODE]
    for j in range(ops.op[o, OUT], ops.op[o, IN]):
        _produce(s, ops.ids[j], e, t, ops)
        e += 1
    for j in range(ops.op[o, IN], ops.op[o, OVER]):
        _use(s, ops.ids[j], e, t, ops)
        e += 1
    _add(s, t, t, ops.op[o, WORKSPACE])
    s.cost[0] += ops.weights[o]
    refresh(s, t, ops)
    return r


@nb.njit(cache=True, nogil=True)
def remove(s, r, ops):
    """Take out run r, a repeat."""
    o, t = s.run[r, OP], s.run[r, AT]
    if s.saved[t]:
        _add(s, t, t, s.saved[t])
        s.saved[t] = 0
    s.slot[t] = NONE
    e = s.run[r, NODE]
    for j in range(ops.op[o, OUT], ops.op[o, IN]):
        _unproduce(s, ops.ids[j], e, t, ops)
        e += 1
    for j in range(ops.op[o, IN], ops.op[o, OVER]):
        _unuse(s, ops.ids[j], e, t, ops)
        e += 1
    _add(s, t, t, -ops.op[o, WORKSPACE])
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


@nb.njit(cache=True, nogil=True)
def useless(s, r, ops):
    """Whether run r is a repeat of which nothing is used."""
    if s.run[r, AT] == NONE or s.run[r, AGAIN] == NONE:
        return False
    e = s.run[r, NODE]
    o = s.run[r, OP]
    for j in range(ops.op[o, OUT], ops.op[o, IN]):
        if life_end(s, e, ops.ids[j], ops) > s.run[r, AT]:
            return False
        e += 1
    return True


@nb.njit(cache=True, nogil=True)
def leeway(s, r, ops):
    """(first, last) slot to which run r may move without passing an event that it depends on or that depends on it."""
    o, t = s.run[r, OP], s.run[r, AT]
    first, last = 0, s.counts[END] - 1
    border = s.counts[BOUNDARY]
    e = s.run[r, NODE]
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


@nb.njit(cache=True, nogil=True)
def move(s, r, t, ops):
    """Move run r to the empty slot t, within its leeway."""
    o, old = s.run[r, OP], s.run[r, AT]
    if s.saved[old]:
        _add(s, old, old, s.saved[old])
        s.saved[old] = 0
    _add(s, old, old, -ops.op[o, WORKSPACE])
    _add(s, t, t, ops.op[o, WORKSPACE])
    first_input = s.run[r, NODE] + ops.op[o, IN] - ops.op[o, OUT]
    # An input's life may end elsewhere; an output's begins elsewhere.
    e = first_input
    for j in range(ops.op[o, IN], ops.op[o, OVER]):
        v = ops.ids[j]
        _unuse(s, v, e, old, ops)
        e += 1
    s.slot[old] = NONE
    e = s.run[r, NODE]
    for j in range(ops.op[o, OUT], ops.op[o, IN]):
        v = ops.ids[j]
        if life_end(s, e, v, ops) > old:
            if t < old:
                _add(s, t, old - 1, ops.value[v, SIZE])
            else:
                _add(s, old, t - 1, -ops.value[v, SIZE])
        else:
            _add(s, old, old, -ops.value[v, SIZE])
            _add(s, t, t, ops.value[v, SIZE])
        s.event[e, SLOT] = t
        e += 1
    s.run[r, AT] = t
    s.slot[t] = r
    e = first_input
    for j in range(ops.op[o, IN], ops.op[o, OVER]):
        _use(s, ops.ids[j], e, t, ops)
        e += 1
    refresh(s, t, ops)
    e = s.run[r, NODE]
    for j in range(ops.op[o, OUT], ops.op[o, IN]):
        end = life_end(s, e, ops.ids[j], ops)
        if end > t:
            refresh(s, end, ops)
        e += 1


@nb.njit(cache=True, nogil=True)
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


@nb.njit(cache=True, nogil=True)
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
    """The state of a valid sequence of runs, evenly spread over its slots."""
    degree = ops.op[:-1, OVER] - ops.op[:-1, OUT]
    room = 2 * len(runs) + 4 * len(degree) + 64  # for repeats that come and go
    n_slots = 1 << int(GAP * (len(runs) + 2)).bit_length()
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


@nb.njit(cache=True, nogil=True)
def fill(s, runs, ops):
    """Put runs into an empty state."""
    n = len(s.slot)
    s.counts[END] = n - 1
    step = (n - 2) / max(1, len(runs))
    for i in range(len(runs)):
        if runs[i] == ops.boundary:
            s.counts[BOUNDARY] = int(step * (i + 0.9))
            break
    for i in range(len(runs)):
        insert(s, runs[i], int(step * (i + 0.9)), ops)
