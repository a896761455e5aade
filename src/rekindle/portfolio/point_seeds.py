"""Points from which `storages` starts: between cheap and large, and costly and small."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..kernels import hong
from ..kernels.arrays import Arrays, Rows
from ..kernels.modes import HOLD, KEEP, TRANSIENT
from ..kernels.order import hoist
from ..kernels.scoring import Point
from .points import Points

CHEAP_QUANTILES = (0.3, 0.5, 0.7)  # of the cost per byte to recompute; values below are tried as transient; guesses
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)  # weight of a segment's own bytes against saved bytes; guesses


def seeds(points: Points, late: bool = False) -> Iterator[Point]:
    """Points to start from. late : also with the large ends of the step at its end; see `postponed`."""
    r = points.reduced
    orders = [points.order]
    begin = r.regions.second_begin
    if begin:
        orders.append(hoist(points.order, begin, r.before, r.arrays))
        if late:
            orders += [o for o in [postponed(o, begin, r.arrays, r.before) for o in orders] if (o != orders[0]).any()]
    last = _last_forward_use(points)
    for order in orders:
        yield points.all_in(KEEP, order)
        for transient in _cheap_values(points):
            for mode in (TRANSIENT, HOLD):
                point = points.all_in(KEEP, order)
                point.modes[transient] = mode
                yield point
            for scale in SCALES:
                yield Point(_cut(points, transient, last, scale), order)


def _cheap_values(points: Points) -> list[np.ndarray]:
    """Sets of values that cost little to recompute for the bytes they hold, from none to most."""
    r = points.reduced
    density = points.weights[r.arrays.producer[r.candidates]] / np.maximum(1, r.arrays.bytes[r.candidates])
    sets = [r.candidates[:0]] + [r.candidates[density <= q] for q in np.quantile(density, CHEAP_QUANTILES)]
    return list({s.tobytes(): s for s in sets}.values())


def _cut(points: Points, transient: np.ndarray, last_use: np.ndarray, scale: float) -> np.ndarray:
    """Modes that keep the values that cross the cuts of the revised objective (`kernels.hong.revised_cuts`), and recompute the
    others segment by segment.

    transient : values (ids) that are recomputed at each use.
    last_use : as `_last_forward_use`.
    scale : weight of a segment's own bytes against saved bytes: more means shorter segments.
    """
    r = points.reduced
    size = r.arrays.bytes
    end = max(1, min(r.first_drop, len(r.ops)))
    first = np.minimum(r.arrays.producer[r.candidates], end - 1)
    last = last_use[r.candidates]
    is_transient = np.zeros(len(size), np.bool_)
    is_transient[transient] = True
    passing, inside = np.zeros(end + 2), np.zeros(end + 1)
    np.add.at(passing, first + 1, size[r.candidates])
    np.add.at(passing, np.minimum(np.maximum(last, first), end) + 1, -size[r.candidates])
    held = ~is_transient[r.candidates]
    np.add.at(inside, first[held] + 1, size[r.candidates][held])
    cross = np.cumsum(passing)[: end + 1]
    cross[0] = cross[end] = 0.0
    at = hong.revised_cuts(cross, np.cumsum(inside) * scale)
    crosses = np.searchsorted(at, first, side="right") < np.searchsorted(at, last, side="right")
    # Backward begins with the segment behind the last cut: recomputing its values would gain nothing.
    behind = (first >= at[-1]) & held if len(at) else np.zeros(len(first), np.bool_)
    modes = points.all_in(HOLD).modes
    modes[transient] = TRANSIENT
    modes[r.candidates[crosses | behind]] = KEEP
    return modes


def _last_forward_use(points: Points) -> np.ndarray:
    """int64 [values]: position of the last op before the first drop that reads the value, -1: none."""
    r = points.reduced
    last = np.full(len(r.values), -1, np.int64)
    for o in range(min(r.first_drop, len(r.ops))):
        last[r.arrays.in_ids[r.arrays.in_ptr[o] : r.arrays.in_ptr[o + 1]]] = o
    return last


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
