"""Search over the modes of values (see `modes`) and the order of ops, scored by the exact peak and cost of the step.

Arguments that functions share:

point : `scoring.Point`. instance : `scoring.Instance`. objective : `objective.Objective`.
bins : `PointBins`; points met on the way are recorded there.
candidates : int64; values whose mode may change, in order of production.
classes : int64 per candidate; see `changes`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from . import changes
from .compiled import entry, inner
from .modes import MODES
from .objective import bin_of, copy_to, score, soft
from .order import leeway, move
from .scoring import Point, evaluate, evaluate_within, scratch_for

# Temperatures by which a change for the worse is never taken: exp(-38) < 2^-53, the least random number.
HOPELESS_TEMPERATURES = 38.0
LOOK_EVERY_PROPOSALS = 64  # how often the values that wait at the peak are looked up
LEAST_TEMPERATURE_SHARE = 1e-3  # of the first temperature, at the end
REORDER_BELOW, DROP_BELOW, NEIGHBOURS_BELOW, KEEP_BELOW = 0.15, 0.42, 0.75, 0.93  # random number: which change; guesses
# The same random number also picks the form of `changes.neighbours` and of `changes.keep_again`; guesses.
SEVERAL_ABOVE, EXCHANGE_ABOVE = 0.64, 0.87
NEAR_PLACES, FAR_PLACES = 6, 40  # how far from a place in the order another one is tried


class PointBins(NamedTuple):
    """The cheapest point found for each range of peaks. Row b holds one whose peak is at most edges[b] and above
    edges[b - 1]; its extra cost is infinite where there is none."""

    edges: np.ndarray  # float64 [bins]
    extra: np.ndarray  # float64 [bins]
    peak: np.ndarray  # float64 [bins]
    modes: np.ndarray  # int8 [bins, values]
    orders: np.ndarray  # int64 [bins, ops]


@entry
def record(bins, point, top, extra):
    """Enter a point where it is cheaper than the one in the bin of its peak."""
    b = bin_of(bins.edges, top)
    if b < len(bins.edges):
        cheapest = bins.extra[b]
        if extra < cheapest - 1e-9 * abs(cheapest) or (extra <= cheapest and top < bins.peak[b]):
            bins.extra[b], bins.peak[b] = extra, top
            copy_to(bins.modes[b], point.modes)
            copy_to(bins.orders[b], point.order)


@inner
def _waiting(runs, m, at, is_candidate, graph, mark, hot):
    """Write to `hot` the candidates that are live while runs[at] runs and are neither its input nor its output; how many.

    mark : int8 [values]; scratch. 1: made before `at`; 2: also read after it, before it is made again.
    """
    in_ptr, in_ids, out_ptr, out_ids = graph.in_ptr, graph.in_ids, graph.out_ptr, graph.out_ids
    for v in range(len(mark)):
        mark[v] = 0
    for s in range(at):
        o = runs[s]
        for j in range(out_ptr[o], out_ptr[o + 1]):
            mark[out_ids[j]] = 1
    for s in range(m - 1, at, -1):
        o = runs[s]
        for j in range(out_ptr[o], out_ptr[o + 1]):
            if mark[out_ids[j]] == 2:
                mark[out_ids[j]] = 1
        for j in range(in_ptr[o], in_ptr[o + 1]):
            if mark[in_ids[j]] == 1:
                mark[in_ids[j]] = 2
    o = runs[at]
    for j in range(in_ptr[o], in_ptr[o + 1]):
        mark[in_ids[j]] = 0
    k = 0
    for v in range(len(mark)):
        if mark[v] == 2 and is_candidate[v]:
            hot[k] = v
            k += 1
    return k


@inner
def _place(order, near, instance):
    """(source, target): another place in the order for some op, half of the time for one beside the op `near`; target is -1
    where it may not move."""
    regions = instance.regions
    n = len(order)
    source = np.random.randint(n)
    if np.random.random() < 0.5:
        for i in range(n):
            if order[i] == near:
                source = min(n - 1, max(0, i + np.random.randint(-NEAR_PLACES, NEAR_PLACES + 1)))
                break
    if regions.first_end <= source < regions.second_begin:
        return source, -1
    low = 0 if source < regions.first_end else regions.second_begin
    high = regions.first_end if source < regions.first_end else n
    first, last = leeway(
        order, source, max(low, source - FAR_PLACES), min(high, source + FAR_PLACES + 1), instance.before
    )
    return source, first + np.random.randint(last - first + 1)


@entry
def anneal(start, candidates, classes, instance, objective, bins, proposals, hot_start, seed):
    """The best point after so many proposals from `start`; every point taken on the way is recorded in `bins`.

    hot_start : first temperature, in units of the score; it falls to a thousandth, quadratically.
    """
    np.random.seed(seed)
    n_values = len(instance.graph.bytes)
    scratch = scratch_for(instance)
    is_candidate = np.zeros(n_values, np.bool_)
    for v in candidates:
        is_candidate[v] = True
    mark = np.empty(n_values, np.int8)
    hot = np.empty(n_values, np.int64)
    point = Point(start.modes.copy(), start.order.copy())
    modes, order = point.modes, point.order
    top, at, extra, m = evaluate(point, instance, scratch)
    current = soft(top, extra, objective)
    record(bins, point, top, extra)
    best = score(top, extra, objective)
    best_modes, best_order = modes.copy(), order.copy()
    n_hot = 0
    peak_op = 0
    changed = np.empty((len(candidates) + 1, 2), np.int64)
    movable = instance.regions.second_begin > 0
    for it in range(proposals):
        if it % LOOK_EVERY_PROPOSALS == 0:
            _, at, _, m = evaluate(point, instance, scratch)
            n_hot = _waiting(scratch.runs, m, at, is_candidate, instance.graph, mark, hot)
            peak_op = scratch.runs[at] if m > 0 else 0
        left = 1.0 - it / proposals
        temperature = hot_start * (left * left + LEAST_TEMPERATURE_SHARE)
        k = 0
        source = target = -1
        u = np.random.random()  # which kind of change, and within two of them which form
        if movable and u < REORDER_BELOW:
            source, target = _place(order, peak_op, instance)
            if target < 0 or target == source:
                continue
            move(order, source, target)
        elif u < DROP_BELOW and n_hot > 0:
            k = changes.drop(hot[np.random.randint(n_hot)], modes, changed)
        elif u < NEIGHBOURS_BELOW:
            k = changes.neighbours(u > SEVERAL_ABOVE, candidates, modes, changed)
        elif u < KEEP_BELOW:
            k = changes.keep_again(u > EXCHANGE_ABOVE, candidates, classes, modes, changed)
        else:
            k = changes.one_class(candidates, classes, modes, changed)
        if k == 0 and target < 0:
            continue
        most = current + HOPELESS_TEMPERATURES * temperature
        top, at, extra, m = evaluate_within(point, instance, objective, most, scratch)
        new = soft(top, extra, objective)
        if new <= current or np.random.random() < np.exp((current - new) / temperature):
            current = new
            record(bins, point, top, extra)
            strict = score(top, extra, objective)
            if strict < best:
                best = strict
                copy_to(best_modes, modes)
                copy_to(best_order, order)
        else:
            if target >= 0:
                move(order, target, source)
            changes.undo(k, modes, changed)
    return Point(best_modes, best_order)


@entry
def descend(start, candidates, instance, objective, bins, passes):
    """Go over all candidates so many times and take every change of one mode for the better; all points met are recorded."""
    scratch = scratch_for(instance)
    point = Point(start.modes.copy(), start.order)
    modes = point.modes
    top, _, extra, _ = evaluate(point, instance, scratch)
    record(bins, point, top, extra)
    current = score(top, extra, objective)
    for _ in range(passes):
        improved = False
        for v in candidates:
            was = modes[v]
            take = was
            for mode in range(MODES):
                if mode == was:
                    continue
                modes[v] = mode
                top, _, extra, _ = evaluate(point, instance, scratch)
                record(bins, point, top, extra)
                s = score(top, extra, objective)
                if s < current - 1e-12:
                    current, take = s, mode
                    improved = True
            modes[v] = take
        if not improved:
            break
