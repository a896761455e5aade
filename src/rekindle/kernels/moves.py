"""Simulated annealing over a sequence of runs (see `sequence`): runs are added, taken out and moved.

A change is a few elementary steps that are logged, so that a refused change is undone.

Arguments that functions share:

s : `slots.Sequence`; changed in place. ops : `slots.Ops`. log : int64 [steps + 1, 3]; see `Work`.
r : a run. o : an op. v : a value. t : a slot.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .aim import score, soft
from .borrow import borrow
from .compiled import entry, inner
from .sequence import empty_before, fill, insert, leeway, move, remove, runs_of, useless
from .slot_lives import life_end, peak_slot, production_before
from .slots import (
    AFTER,
    AGAIN,
    AT,
    BOUNDARY,
    END,
    FIRST,
    IN,
    MADE,
    MOST,
    N_AGAIN,
    NONE,
    OP,
    OUT,
    OVER,
    PRODUCER,
    RECOMPUTE,
    RUN,
    RUN_TOP,
    SIZE,
    SLOT,
    Ops,
    Sequence,
)

INSERTED, REMOVED, MOVED = 0, 1, 2  # kinds of steps in the log
MOST_STEPS = 60  # elementary steps of one change
MOST_ADDED_RUNS = 30  # by one change
STACK_RUNS = 64  # runs, or values, of one change that are still to be looked at
AT_PEAK_BELOW, LONG_WAIT_BELOW, TAKE_OUT_BELOW = 0.35, 0.45, 0.75  # random number: which change; guesses
NEAR_SLOTS = 80  # most moves go no further
FINEST_COST_SHARE = 1e-4  # of the base cost: sequences that differ by less count as equally cheap
LEAST_TEMPERATURE_SHARE = 1e-3  # of the first temperature, at the end


class SequenceBins(NamedTuple):
    """The cheapest sequence found for each range of peaks. Row b holds one whose peak is at most edges[b] and above
    edges[b - 1]; its extra cost is infinite where there is none."""

    edges: np.ndarray  # float64 [bins]
    extra: np.ndarray  # float64 [bins]
    peak: np.ndarray  # float64 [bins]
    runs: np.ndarray  # int32 [bins, most runs]
    lengths: np.ndarray  # int64 [bins]; number of runs


class Work(NamedTuple):
    """Work space of one change."""

    log: np.ndarray  # int64 [steps + 1, 3]; [0, 0] counts the steps; then (kind, op or old slot, slot) of each
    stack: np.ndarray  # int64; runs still to be taken out
    values: np.ndarray  # int64; values still to be made,
    slots: np.ndarray  # int64; and the slots before which


@inner
def _work():
    return Work(
        np.zeros((MOST_STEPS + 4, 3), np.int64), np.empty(STACK_RUNS, np.int64), np.empty(STACK_RUNS, np.int64),
        np.empty(STACK_RUNS, np.int64),
    )  # fmt: skip


@inner
def _note(log, kind, x, t):
    log[0, 0] += 1
    i = log[0, 0]
    log[i, 0], log[i, 1], log[i, 2] = kind, x, t


@inner
def _insert(s, o, t, ops, log):
    if log[0, 0] >= MOST_STEPS - 2:
        return False
    if insert(s, o, t, ops) == NONE:
        return False
    _note(log, INSERTED, o, t)
    return True


@inner
def _remove(s, r, ops, log):
    if log[0, 0] >= MOST_STEPS - 2:
        return False
    _note(log, REMOVED, np.int64(s.run[r, OP]), np.int64(s.run[r, AT]))
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
def _waiting(s, t, ops, hot):
    """Write to `hot` the values that wait in slot t for a later use and can be recomputed; how many."""
    k = 0
    for v in range(len(ops.value)):
        if ops.value[v, SIZE] and ops.op[ops.value[v, PRODUCER], RECOMPUTE] and use_after(s, v, t) != NONE:
            hot[k] = v
            k += 1
    return k


@inner
def _longest_wait(s, v):
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


@inner
def respread(s, ops, buffer):
    """Spread the runs evenly over the slots again."""
    m = runs_of(s, buffer)
    if m == NONE:
        return
    s.slot[:] = NONE
    s.run[:] = NONE
    s.changing[:] = NONE
    s.head[:] = NONE
    s.tree[:] = 0
    s.saved[:] = 0
    s.counts[:] = 0
    s.counts[BOUNDARY] = NONE
    s.cost[0] = 0.0
    fill(s, buffer[:m], ops)


@inner
def record(s, bins, extra, finest):
    """Enter the sequence where it is cheaper, by more than `finest`, than the one in the bin of its peak."""
    top = s.tree[1, MOST]
    b = np.searchsorted(bins.edges, top)
    if b < len(bins.edges):
        cheapest = bins.extra[b]
        if extra < cheapest - finest or (extra <= cheapest + finest and top < bins.peak[b]):
            m = runs_of(s, bins.runs[b])
            if m != NONE:
                bins.extra[b], bins.peak[b], bins.lengths[b] = min(extra, cheapest), top, m


@inner
def _borrowed(s, ops):
    return (
        Sequence(
            borrow(s.slot), borrow(s.run), borrow(s.changing), borrow(s.repeats), borrow(s.head), borrow(s.event),
            borrow(s.tree), borrow(s.saved), borrow(s.counts), borrow(s.cost),
        ),
        Ops(borrow(ops.value), borrow(ops.op), borrow(ops.ids), borrow(ops.weights), ops.boundary),
    )  # fmt: skip


@entry
def anneal(s, ops, aim, bins, base_cost, changes, hot_start, seed):
    """The best score met in so many changes; every sequence accepted on the way is recorded in `bins`.

    aim : `aim.Aim`. bins : `SequenceBins`. base_cost : the cost of running each op once.
    hot_start : first temperature, in units of the score; it falls to a thousandth, quadratically.
    """
    np.random.seed(seed)
    s, ops = _borrowed(s, ops)
    work = _work()
    log = work.log
    hot = np.empty(len(ops.value), np.int64)
    buffer = np.empty(bins.runs.shape[1], np.int64)
    n_values = len(ops.value)
    finest = FINEST_COST_SHARE * base_cost
    current = soft(float(s.tree[1, MOST]), s.cost[0] - base_cost, aim)
    best = score(float(s.tree[1, MOST]), s.cost[0] - base_cost, aim)
    record(s, bins, s.cost[0] - base_cost, 0.0)
    n_hot, hot_slot, failed = 0, 0, 0
    period = max(128, n_values // 4)
    for it in range(changes):
        if it % period == 0:
            hot_slot = peak_slot(s)
            n_hot = _waiting(s, hot_slot, ops, hot)
            if failed > period // 3:  # no room left where changes are made
                respread(s, ops, buffer)
                hot_slot = peak_slot(s)
                failed = 0
        left = 1.0 - it / changes
        temperature = hot_start * (left * left + LEAST_TEMPERATURE_SHARE)
        log[0, 0] = 0
        u = np.random.random()
        done = False
        if u < AT_PEAK_BELOW and n_hot:
            v = hot[np.random.randint(n_hot)]
            e = use_after(s, v, hot_slot)
            if e == NONE:
                continue
            done = make_again(s, v, s.event[e, SLOT], hot_slot, ops, work)
            failed += not done
        elif u < LONG_WAIT_BELOW:
            v = np.random.randint(n_values)
            e = _longest_wait(s, v)
            if e == NONE:
                continue
            done = make_again(s, v, s.event[e, SLOT], hot_slot, ops, work)
        elif u < TAKE_OUT_BELOW:
            if s.counts[N_AGAIN] == 0:
                continue
            done = take_out(s, s.repeats[np.random.randint(s.counts[N_AGAIN])], ops, work)
        else:
            r = np.random.randint(s.counts[RUN_TOP])
            if s.run[r, AT] == NONE:
                continue
            old = np.int64(s.run[r, AT])
            first, last = leeway(s, r, ops)
            if np.random.random() < 0.7:
                first, last = max(first, old - NEAR_SLOTS), min(last, old + NEAR_SLOTS)
            if last <= first:
                continue
            t = first + np.random.randint(last - first + 1)
            if s.slot[t] != NONE:
                t = empty_before(s, t, 4)
            if t < first or t == NONE or t >= s.counts[END]:
                continue
            move(s, r, t, ops)
            _note(log, MOVED, old, t)
            done = True
        if not done:
            undo(s, ops, log)
            continue
        top, extra = float(s.tree[1, MOST]), s.cost[0] - base_cost
        new = soft(top, extra, aim)
        if new <= current or np.random.random() < np.exp((current - new) / temperature):
            current = new
            record(s, bins, extra, finest)
            strict = score(top, extra, aim)
            if strict < best:
                best = strict
        else:
            undo(s, ops, log)
    return best
