"""Bounds for schedules that may copy values to the host.

Take a schedule of peak P and T seconds, and let A be the most bytes that are away from the device at one moment. Left on the
device, they make a schedule without copies, of peak at most P + A, whose ops take at most T. So P is at least a bound for
schedules without copies within T, less A. All that is away at one moment has been copied out before it and is copied back
after it, so A takes at most T: A <= T / (1 / out + 1 / back), in bytes per second, whether or not both ways work at once.
(Values that are away and never come back are not needed: leave out their copies.) And no op runs without its working set.
"""

from __future__ import annotations

import numpy as np

from ..model.floor import Bound, single_op
from ..model.graph import Graph
from ..model.resident import N
from ..saying.shares import EPS
from .waiting import at_overhead, extras_at

POINTS = 256  # overheads at which it is looked whether a limit can be kept
MOST_OVERHEAD = 4.0  # the largest of them


def with_copies(graph: Graph, overhead: float, host_bytes: float) -> Bound:
    """A bound on the peak of every schedule with copies that takes at most `overhead` more seconds than each needed op once.

    host_bytes : that the host may hold.
    """
    weights, floor = graph.weights("seconds"), single_op(graph)
    if not weights[graph.needed].any():  # beside a step of no seconds, no time of copies is an overhead
        return floor
    found = at_overhead(graph, weights, overhead)
    left = found.bytes - _away(graph, overhead, host_bytes) - 1
    return floor if left <= floor.bytes else Bound(int(left), found.op)


def least_overhead_with_copies(graph: Graph, limit: int, host_bytes: float) -> float:
    """An overhead below which no schedule with copies keeps the limit, a peak in bytes with the resident ones."""
    weights = graph.weights("seconds")
    once = float(weights[graph.needed].sum())
    if once <= 0:
        return 0.0
    overheads = np.concatenate([[0.0], np.geomspace(1e-4, MOST_OVERHEAD, POINTS)])
    rooms = np.minimum(limit + _away(graph, overheads, host_bytes) + 1, 2.0**62)
    needed = np.array(extras_at(graph, weights, rooms.astype(np.int64).tolist())) / once
    # More overhead means more bytes away, so less is needed: from the first one that suffices all do.
    enough = np.flatnonzero(needed <= overheads * (1 + EPS))
    first = int(enough[0]) if len(enough) else len(overheads)
    return 0.0 if first == 0 else float(overheads[first - 1])


def most_away(graph: Graph, seconds: N, host_bytes: float) -> N:
    """The most bytes that a step of so many seconds (a number or an array) has away at one moment.

    host_bytes : that the host may hold.
    """
    assert graph.link is not None
    out, back, _, _ = graph.link.rates
    return np.minimum(seconds / (out + back), host_bytes)


def _away(graph: Graph, overhead: N, host_bytes: float) -> N:
    """`most_away` of a step of this overhead (a number or an array)."""
    once = float(graph.weights("seconds")[graph.needed].sum())
    return most_away(graph, (1 + np.maximum(overhead, 0.0)) * once * (1 + EPS), host_bytes)
