"""Simulated annealing over a sequence of runs (see `sequence`): runs are added, taken out and moved.

A change is a few elementary steps that are logged (see `run_changes`), so that a refused change is undone.

Arguments that functions share: s : `slots.Sequence`; changed in place. ops : `slots.Ops`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .borrow import borrow
from .compiled import entry, inner
from .objective import bin_of, score, soft
from .run_changes import MOVED, longest_wait, make_again, new_work, note, take_out, undo, use_after, waiting
from .sequence import empty_before, leeway, move, runs_of, spread
from .slot_lives import peak_slot
from .slots import AT, BOUNDARY, END, MOST, N_AGAIN, NONE, RUN_TOP, SLOT

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
    spread(s, borrow(buffer[:m]), ops)


@inner
def record(s, bins, extra, finest):
    """Enter the sequence where it is cheaper, by more than `finest`, than the one in the bin of its peak."""
    top = s.tree[1, MOST]
    b = bin_of(bins.edges, top)
    if b < len(bins.edges):
        cheapest = bins.extra[b]
        if extra < cheapest - finest or (extra <= cheapest + finest and top < bins.peak[b]):
            m = runs_of(s, bins.runs[b])
            if m != NONE:
                bins.extra[b], bins.peak[b], bins.lengths[b] = min(extra, cheapest), top, m


@entry
def anneal(s, ops, objective, bins, base_cost, changes, hot_start, seed):
    """The best score met in so many changes; every sequence accepted on the way is recorded in `bins`.

    objective : `objective.Objective`. bins : `SequenceBins`. base_cost : the cost of running each op once.
    hot_start : first temperature, in units of the score; it falls to a thousandth, quadratically.
    """
    np.random.seed(seed)
    s, ops, bins = borrow(s), borrow(ops), borrow(bins)
    work = new_work()
    log = work.log
    hot = np.empty(len(ops.value), np.int64)
    buffer = np.empty(bins.runs.shape[1], np.int64)
    n_values = len(ops.value)
    finest = FINEST_COST_SHARE * base_cost
    current = soft(float(s.tree[1, MOST]), s.cost[0] - base_cost, objective)
    best = score(float(s.tree[1, MOST]), s.cost[0] - base_cost, objective)
    record(s, bins, s.cost[0] - base_cost, 0.0)
    n_hot, hot_slot, failed = 0, 0, 0
    period = max(128, n_values // 4)
    for it in range(changes):
        if it % period == 0:
            hot_slot = peak_slot(s)
            n_hot = waiting(s, hot_slot, ops, hot)
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
            e = longest_wait(s, v)
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
            note(log, MOVED, old, t)
            done = True
        if not done:
            undo(s, ops, log)
            continue
        top, extra = float(s.tree[1, MOST]), s.cost[0] - base_cost
        new = soft(top, extra, objective)
        if new <= current or np.random.random() < np.exp((current - new) / temperature):
            current = new
            record(s, bins, extra, finest)
            strict = score(top, extra, objective)
            if strict < best:
                best = strict
        else:
            undo(s, ops, log)
    return best
