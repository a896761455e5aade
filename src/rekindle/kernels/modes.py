"""Three modes per value, expanded to a sequence of runs, and the peak of such a sequence.

A value that forward makes and backward reads is in one of three modes:

KEEP      it stays until its last use;
HOLD      it is freed where forward ends, recomputed when first needed, and then stays until its last use;
TRANSIENT it is freed where forward ends, and recomputed for each op that needs it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiled import entry, inner

TRANSIENT, HOLD, KEEP = 0, 1, 2
MODES = 3


class Scratch(NamedTuple):
    """Work space to expand modes and to find a peak; each thread has its own."""

    available: np.ndarray  # bool [values]
    gone: np.ndarray  # bool [values]; freed where forward ends
    stack: np.ndarray  # int64 [ops + 1]
    passing: np.ndarray  # int64 [values + 1]; transient values made for the op at hand
    live: np.ndarray  # bool [values]
    runs: np.ndarray  # int64 [most runs]; the sequence


@inner
def new_scratch(values, ops, most_runs):
    """`Scratch` for so many values and ops, and sequences of at most `most_runs` runs."""
    return Scratch(
        np.empty(values, np.bool_), np.empty(values, np.bool_), np.empty(ops + 1, np.int64),
        np.empty(values + 1, np.int64), np.empty(values, np.bool_), np.empty(most_runs, np.int64),
    )  # fmt: skip


@entry
def expand(order, modes, drops, graph, scratch):
    """Write the runs that follow from the modes to `scratch.runs`; how many, or -1 where they do not fit.

    order : int64, the ops once each, in a valid order.
    modes : int8 [values].
    drops : `Rows`; row i holds the values that are freed, unless KEEP, before position i of `order`.
    graph : `Arrays`.

    The missing inputs of an op are recomputed right before it, each by its producer, after the missing inputs of that.
    """
    producer, in_ptr, in_ids, out_ptr, out_ids = (
        graph.producer, graph.in_ptr, graph.in_ids, graph.out_ptr, graph.out_ids
    )  # fmt: skip
    available, gone, stack, passing, runs = (
        scratch.available, scratch.gone, scratch.stack, scratch.passing, scratch.runs
    )  # fmt: skip
    m = 0
    cap = len(runs)
    for v in range(len(producer)):
        available[v] = producer[v] < 0
        gone[v] = False
    for i in range(len(order)):
        for j in range(drops.ptr[i], drops.ptr[i + 1]):
            v = drops.ids[j]
            if modes[v] != KEEP:
                available[v] = False
                gone[v] = True
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
                return -1
            runs[m] = o
            m += 1
            for j in range(out_ptr[o], out_ptr[o + 1]):
                v = out_ids[j]
                if not available[v]:
                    available[v] = True
                    if gone[v] and modes[v] == TRANSIENT:
                        passing[n_passing] = v
                        n_passing += 1
        for k in range(n_passing):
            available[passing[k]] = False
    return m


@entry
def peak(runs, m, most, live, graph, shared):
    """(peak bytes without the resident ones, index of the run that holds it) of runs[:m]. Where the last runs hold more
    than `most`, the scan stops there and returns the peak so far.

    live : bool [values]; scratch.
    graph : `Arrays`.
    shared : bool [values]: values that the boundary reads or makes, which nothing may be written over.

    The same as the judge of `Schedule.from_runs`, in one backward scan: the values live after a run are known there, and an
    input that is not live after the run dies in it.
    """
    size, producer, keep, workspace = graph.bytes, graph.producer, graph.keep, graph.workspace
    in_ptr, in_ids, out_ptr, out_ids = graph.in_ptr, graph.in_ids, graph.out_ptr, graph.out_ids
    inplace_ptr, inplace_ids = graph.inplace_ptr, graph.inplace_ids
    held = 0
    for v in range(len(size)):
        live[v] = keep[v]
        if keep[v] and producer[v] >= 0:
            held += size[v]
    best = 0
    at = 0
    for s in range(m - 1, -1, -1):
        o = runs[s]
        during = held + workspace[o]
        before = held
        first_lives = False
        for j in range(out_ptr[o], out_ptr[o + 1]):
            v = out_ids[j]
            if live[v]:
                before -= size[v]
                live[v] = False
                if j == out_ptr[o]:
                    first_lives = True
            else:
                during += size[v]
        if first_lives and inplace_ptr[o + 1] > inplace_ptr[o]:
            first = out_ids[out_ptr[o]]
            for q in range(inplace_ptr[o], inplace_ptr[o + 1]):
                v = inplace_ids[q]
                if producer[v] >= 0 and not shared[v] and not live[v] and size[v] >= size[first]:
                    during -= size[first]
                    break
        for j in range(in_ptr[o], in_ptr[o + 1]):
            v = in_ids[j]
            if producer[v] >= 0 and not live[v]:
                live[v] = True
                during += size[v]
                before += size[v]
        if during > best:
            best = during
            at = s
            if best > most:
                break
        held = before
    return best, at
