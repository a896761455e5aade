"""An order of ops in which large ends of the step wait until little else is live."""

from __future__ import annotations

import numpy as np

from ..kernels.arrays import Arrays, Rows


def postponed(order: np.ndarray, begin: int, arrays: Arrays, before: Rows) -> np.ndarray:
    """int64: `order` with, from position `begin` on, the large ends moved to the end, where little else is live.

    An end is an op for which nothing but ends has to wait: a weight's gradient and the op that hands it over. It is large if
    it makes more bytes, workspace included, than waiting for it holds: the values that no later op reads. So the gradient of
    a large fully connected layer comes after the backward of the convolutions before it. O(ops + edges).

    before : per op the ops that must run before it, also by way of ops that are left out.
    """
    order = np.asarray(order, np.int64)
    awaited, ends, large = (
        np.zeros(len(arrays.workspace), np.bool_) for _ in range(3)
    )  # awaited by an op that is no end
    read_later = np.zeros(len(arrays.bytes), np.bool_)
    for o in order[begin:][::-1].tolist():
        made = arrays.out_ids[arrays.out_ptr[o] : arrays.out_ptr[o + 1]]
        read = arrays.in_ids[arrays.in_ptr[o] : arrays.in_ptr[o + 1]]
        if not awaited[o] and not arrays.keep[made].any():
            ends[o] = True
            takes = int(arrays.bytes[made].sum()) + int(arrays.workspace[o])
            large[o] = takes > int(arrays.bytes[read][~read_later[read] & ~arrays.keep[read]].sum())
        else:
            awaited[before.ids[before.ptr[o] : before.ptr[o + 1]]] = True
        read_later[read] = True
    moved = large.copy()
    for o in order[begin:].tolist():  # ends that wait for a moved end go with it
        if ends[o] and moved[before.ids[before.ptr[o] : before.ptr[o + 1]]].any():
            moved[o] = True
    late = np.zeros(len(order), np.bool_)
    late[begin:] = moved[order[begin:]]
    return np.concatenate([order[~late], order[late]])
