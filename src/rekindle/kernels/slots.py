"""A sequence of runs that stand in slots, and the problem beside it, packed for compiled loops (see `sequence`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Arrays, Rows

NONE = -1
SLOTS_PER_RUN = 8
# Columns of the tables below.
SIZE, PRODUCER, KEEP, SHARED = 0, 1, 2, 3  # of a value
OUT, IN, OVER, BEFORE, LATER, WORKSPACE, RECOMPUTE = 0, 1, 2, 3, 4, 5, 6  # of an op
OP, AT, NODE, AGAIN = 0, 1, 2, 3  # of a run
FIRST, SPARE = 0, 1  # of an op, changing
AFTER, PRIOR, SLOT, RUN, MADE = 0, 1, 2, 3, 4  # of an event
MOST, ADD = 0, 1  # of a node of the tree
BOUNDARY, N_AGAIN, NODE_TOP, RUN_TOP, END = 0, 1, 2, 3, 4  # in `Sequence.counts`


class Ops(NamedTuple):
    """The problem in few arrays, since a compiled call passes every array of a tuple on its own.

    value : int64 [values, 4]; bytes, the op that makes it, whether it is kept, whether nothing may be written over it.
    op : int64 [ops + 1, 7]; where in `ids` begin its outputs, its inputs, the inputs that it may write over, and the ops
        that must run for the first time before it and after it (these end where the next op's outputs begin); its
        workspace; whether it may run again.
    weights : float64 [ops].
    """

    value: np.ndarray
    op: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    boundary: int


class Sequence(NamedTuple):
    """Runs in slots, the events of each value, and the memory of each slot. Arrays of ids are int32.

    slot : the run in each slot, NONE where it is empty.
    run : per run its op, its slot (NONE: not in use), its first event (outputs, then inputs), and its place in
        `repeats` (NONE: the first run of its op; of a run not in use: the next unused run of the op).
    changing : per op its first run, and its first unused one.
    repeats : the runs that are repeats, in no order.
    head : per value its first event.
    event : the next and the previous event of the same value, its slot, its run, whether it is a production.
    tree : int64; per node the most memory below it, and the bytes added to all below it.
    saved : int64; per slot the bytes that writing in place spares.
    counts : int64; see BOUNDARY ... END.
    cost : float64 [1]; the sum of the weights of all runs.
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


def pack(a: Arrays, weights: np.ndarray, shared: np.ndarray, before: Rows) -> Ops:
    """Pack a problem whose values are all made by ops.

    weights : float64 [ops]; cost of a run.
    shared : bool [values]; values that nothing may be written over.
    before : per op the ops that must run before it for the first time.
    """
    before_ptr, before_ids = before
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
