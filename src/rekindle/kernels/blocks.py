"""The backward programs of a block: what they run is expanded from modes, and each is priced."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Rows
from .compiled import entry
from .modes import expand, peak


class Marks(NamedTuple):
    """Values of a block that a price looks at; each bool [values]. See `structure.blocks.Block`."""

    own: np.ndarray
    saved: np.ndarray
    unread: np.ndarray
    counted: np.ndarray  # in the peak of every program: own, ending, or there when backward begins
    left: np.ndarray
    shared: np.ndarray  # the boundary of the whole step reads or makes it


@entry
def outline(graph, turn):
    """(order int64: the needed ops; before: `Rows`, per op the producers of its inputs; candidates int64: values that forward
    makes and that may be freed early).

    graph : `Arrays` of a block. turn : the op that stands for the rest of the step.
    """
    in_ptr, in_ids, producer, keep = graph.in_ptr, graph.in_ids, graph.producer, graph.keep
    n = len(graph.recompute)
    need = np.zeros(n, np.bool_)
    for v in range(len(keep)):
        if keep[v] and producer[v] >= 0:
            need[producer[v]] = True
    before_ptr, before_ids = np.zeros(n + 1, np.int64), np.empty(len(in_ids), np.int64)
    for o in range(n - 1, -1, -1):
        if need[o]:
            for j in range(in_ptr[o], in_ptr[o + 1]):
                if producer[in_ids[j]] >= 0:
                    need[producer[in_ids[j]]] = True
    m = count = 0
    order = np.empty(n, np.int64)
    for o in range(n):
        if need[o]:
            order[count] = o
            count += 1
        for j in range(in_ptr[o], in_ptr[o + 1]):
            if producer[in_ids[j]] >= 0:
                before_ids[m] = producer[in_ids[j]]
                m += 1
        before_ptr[o + 1] = m
    candidates = np.empty(len(keep), np.int64)
    found = 0
    for v in range(len(keep)):
        p = producer[v]
        if 0 <= p < turn and need[p] and graph.recompute[p] and graph.bytes[v] > 0 and not keep[v]:
            candidates[found] = v
            found += 1
    return order[:count].copy(), Rows(before_ptr, before_ids[:m].copy()), candidates[:found].copy()


@entry
def price(order, modes, drops, graph, bare, marks, weights, turn, scratch):
    """float64 [rows, 3]: of the backward program that follows from each row of modes the bytes held for it, its peak, and its
    cost; infinite where it takes more runs than `scratch` holds.

    order, drops, graph, scratch : as `modes.expand` takes them. modes : int8 [rows, values].
    bare : `graph` with sizes that count everywhere, and `marks.left` as the values to keep; its sizes are written over.
    weights : float64 [ops]. turn : the op after whose run the program begins.
    """
    size = bare.bytes.copy()
    out = np.full((len(modes), 3), np.inf)
    needs = np.empty(len(size), np.bool_)
    for k in range(len(modes)):
        m = expand(order, modes[k], drops, graph, scratch)
        if m < 0:
            continue
        begin = 0
        while scratch.runs[begin] != turn:
            begin += 1
        program = scratch.runs[begin + 1 : m]
        cost = 0.0
        for o in program:
            cost += weights[o]
        for v in range(len(size)):
            needs[v] = marks.left[v] and marks.own[v]
        missing(program, needs, graph)
        held = behind = 0
        for v in range(len(size)):
            extra = marks.unread[v] and needs[v]
            if marks.saved[v] or extra or (marks.own[v] and needs[v]):
                held += size[v]
            bare.bytes[v] = size[v] if marks.counted[v] or extra else 0
            if marks.left[v]:
                behind += bare.bytes[v]
        top, _ = peak(program, len(program), np.inf, scratch.live, bare, marks.shared)
        out[k, 0], out[k, 1], out[k, 2] = held, max(top, behind), cost
    bare.bytes[:] = size
    return out


@entry
def localise(ops, graph, place):
    """Number the values that `ops` touch, in the order of first touch.

    graph : `Arrays`.
    place : int64 [values of the graph], all -1; used as scratch and left as it was.

    Returns (values, wiring). values : int64, the graph's id of each local value. wiring : int64; for each op its inputs,
    outputs and the inputs that it may write over, as local ids, each row with its length in front.
    """
    total = 3 * len(ops)
    for o in ops:
        total += graph.in_ptr[o + 1] - graph.in_ptr[o] + graph.out_ptr[o + 1] - graph.out_ptr[o]
        total += graph.inplace_ptr[o + 1] - graph.inplace_ptr[o]
    values, wiring = np.empty(total, np.int64), np.empty(total, np.int64)
    n = m = 0
    for o in ops:
        for ptr, ids in (
            (graph.in_ptr, graph.in_ids),
            (graph.out_ptr, graph.out_ids),
            (graph.inplace_ptr, graph.inplace_ids),
        ):
            wiring[m] = ptr[o + 1] - ptr[o]
            m += 1
            for j in range(ptr[o], ptr[o + 1]):
                v = ids[j]
                if place[v] < 0:
                    place[v] = n
                    values[n] = v
                    n += 1
                wiring[m] = place[v]
                m += 1
    for k in range(n):
        place[values[k]] = -1
    return values[:n], wiring


@entry
def rows(wiring, count):
    """Take the `wiring` of `count` ops apart: (ptr int64 [3, ops + 1], ids int64 [3, ...]), compressed rows of inputs,
    outputs and inputs that may be written over."""
    ptr = np.zeros((3, count + 1), np.int64)
    ids = np.empty((3, len(wiring)), np.int64)
    m = 0
    for o in range(count):
        for kind in range(3):
            length, begin = wiring[m], ptr[kind, o]
            for k in range(length):  # as a slice it takes numba two seconds longer to compile
                ids[kind, begin + k] = wiring[m + 1 + k]
            ptr[kind, o + 1] = begin + length
            m += 1 + length
    return ptr, ids


@entry
def missing(runs, wanted, graph):
    """Turn `wanted` (bool [values]: needed after `runs`) into the values needed before them. In place."""
    for s in range(len(runs) - 1, -1, -1):
        o = runs[s]
        for j in range(graph.out_ptr[o], graph.out_ptr[o + 1]):
            wanted[graph.out_ids[j]] = False
        for j in range(graph.in_ptr[o], graph.in_ptr[o + 1]):
            wanted[graph.in_ids[j]] = True
