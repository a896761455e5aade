"""An order of ops in which large ends of the step wait until little else is live."""

from __future__ import annotations

import numpy as np

from ..kernels.arrays import Arrays


def postponed(order: np.ndarray, begin: int, arrays: Arrays) -> np.ndarray:
    """int64: `order` with, from position `begin` on, the large ends moved to the end, where little else is live.

    An end is an op from whose outputs nothing but ends is made: a weight's gradient and the op that hands it over. It is
    large if it makes more bytes, workspace included, than waiting for it holds: the values that no later op reads. So the
    gradient of a large fully connected layer comes after the backward of the convolutions before it. O(ops + edges).
    """
    order = np.asarray(order, np.int64)
    ends, large = np.zeros(len(arrays.workspace), np.bool_), np.zeros(len(arrays.workspace), np.bool_)
    reads = np.bincount(arrays.in_ids, minlength=len(arrays.bytes))
    by_ends = np.zeros(len(arrays.bytes), np.int64)  # reads of each value by ends
    read_later = np.zeros(len(arrays.bytes), np.bool_)
    for o in order[begin:][::-1].tolist():
        made = arrays.out_ids[arrays.out_ptr[o] : arrays.out_ptr[o + 1]]
        read = arrays.in_ids[arrays.in_ptr[o] : arrays.in_ptr[o + 1]]
        if (by_ends[made] == reads[made]).all() and not arrays.keep[made].any():
            ends[o] = True
            by_ends[read] += 1
            takes = int(arrays.bytes[made].sum()) + int(arrays.workspace[o])
            large[o] = takes > int(arrays.bytes[read][~read_later[read] & ~arrays.keep[read]].sum())
        read_later[read] = True
    moved = large.copy()
    for o in order[begin:].tolist():  # ends that read what a moved end makes go with it
        read = arrays.in_ids[arrays.in_ptr[o] : arrays.in_ptr[o + 1]]
        makers = arrays.producer[read]
        if ends[o] and moved[makers[makers >= 0]].any():
            moved[o] = True
    late = np.zeros(len(order), np.bool_)
    late[begin:] = moved[order[begin:]]
    return np.concatenate([order[~late], order[late]])
