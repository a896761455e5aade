"""The exact peak and extra cost of a point: a mode for each value, and an order of the ops.

The state of the search over modes (`search`) lies in the NamedTuples below; each thread has its own `modes.Scratch`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..saying.shares import EPS
from .arrays import Arrays, Rows
from .compiled import entry, inner
from .modes import KEEP, TRANSIENT, expand, new_scratch, peak
from .objective import ANY, BEYOND, soft
from .order import Regions

INFEASIBLE = 1e18  # peak and cost of a point that is given up
MARGIN = 1 + EPS


class Point(NamedTuple):
    """One choice of a search: a mode for each value, and an order of the ops."""

    modes: np.ndarray  # int8 [values]
    order: np.ndarray  # int64 [ops]


class Instance(NamedTuple):
    """A reduced problem (see `structure.reduced`) as the compiled search takes it."""

    graph: Arrays
    drops: Rows  # per position of the order the values that are freed before it unless they are kept
    weights: np.ndarray  # float64 [ops]; cost of a run
    base_cost: float  # their sum
    shared: np.ndarray  # bool [values]; values that nothing may be written over
    before: Rows  # per op the ops that must run before it
    regions: Regions
    most_runs: int  # of a sequence


@inner
def scratch_for(instance):
    """Work space for `evaluate`; each thread has its own."""
    return new_scratch(len(instance.graph.bytes), len(instance.graph.workspace), instance.most_runs)


@inner
def _expand(point, ends, instance, most, scratch):
    """(number of runs, cost beyond one run per op): as `modes.expand`, where all values are freed at position `ends`; the
    number is also -1 where the cost is more than `most`."""
    modes, order, weights = point.modes, point.order, instance.weights
    graph = instance.graph
    producer, in_ptr, in_ids, out_ptr, out_ids = (
        graph.producer, graph.in_ptr, graph.in_ids, graph.out_ptr, graph.out_ids
    )  # fmt: skip
    available, gone, stack, passing, runs = (
        scratch.available, scratch.gone, scratch.stack, scratch.passing, scratch.runs
    )  # fmt: skip
    cap = len(runs)
    for v in range(len(producer)):
        forward = producer[v] < ends
        available[v] = forward and modes[v] == KEEP
        gone[v] = forward and modes[v] == TRANSIENT
    for i in range(ends):
        runs[i] = order[i]
    m = ends
    extra = 0.0
    for i in range(ends, len(order)):
        n_passing = 0
        stack[0] = order[i]
        top = 1
        while top > 0:
            o = stack[top - 1]
            ready = True
            for j in range(in_ptr[o], in_ptr[o + 1]):
                v = in_ids[j]
                if not available[v]:
                    stack[top] = producer[v]
                    top += 1
                    ready = False
                    break
            if not ready:
                continue
            top -= 1
            if m >= cap:
                return -1, 0.0
            runs[m] = o
            m += 1
            if top:
                extra += weights[o]
            for j in range(out_ptr[o], out_ptr[o + 1]):
                v = out_ids[j]
                if not available[v]:
                    available[v] = True
                    if gone[v]:
                        passing[n_passing] = v
                        n_passing += 1
        if extra > most:
            return -1, extra
        for k in range(n_passing):
            available[passing[k]] = False
    return m, extra


@entry
def evaluate(point, instance, scratch):
    """(peak, index of the run that holds it, extra cost, number of runs); the runs lie in `scratch.runs`."""
    return evaluate_within(point, instance, ANY, np.inf, scratch)


@entry
def evaluate_within(point, instance, objective, most, scratch):
    """As `evaluate`; or INFEASIBLE, where it is seen on the way that the soft score is above `most`."""
    ends = instance.regions.second_begin
    if ends > 0:
        most_extra = _where(most, objective.max_extra, objective.cost_scale, objective.cost_weight)
        m, extra = _expand(point, ends, instance, most_extra, scratch)
    else:
        m = expand(point.order, point.modes, instance.drops, instance.graph, scratch)
        extra = -instance.base_cost
        for s in range(m):
            extra += instance.weights[scratch.runs[s]]
    if m < 0:
        return INFEASIBLE, 0, INFEASIBLE, 0
    most_peak = _where(most - soft(0.0, extra, objective), objective.limit, objective.peak_scale, objective.peak_weight)
    top, at = peak(scratch.runs, m, most_peak, scratch.live, instance.graph, instance.shared)
    if top > most_peak:
        return INFEASIBLE, 0, INFEASIBLE, 0
    return float(top), at, extra, m


@inner
def _where(most, limit, scale, weight):
    """The amount from which on its part of the soft score is above `most`, with a margin beyond rounding."""
    most = most * scale * MARGIN
    if most <= weight * limit:
        return max(0.0, most) / weight
    return (most + BEYOND * limit) / (weight + BEYOND) * MARGIN
