"""What must wait while one op runs for the first time: a knapsack over what can be made again within a cost.

When op v runs for the first time, a value that was made before it in every schedule, and is read after it in every
schedule, is live, or its op runs again later. So the peak is at least v's working set and all such values less the most
bytes that can be made again within the extra cost. Holds for every order of the ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..graph import Graph
from ..kernels import waiting as kernel
from .base import Bound, single_op, working_set

EDGES = 50_000_000  # edges read at most: a second


def at_overhead(graph: Graph, weights: np.ndarray, overhead: float) -> Bound:
    """A bound on the peak of every schedule whose extra cost is at most `overhead` of running each needed op once.

    weights : float64 [ops], the cost of one run of each op.

    O((n + edges) log n) per op looked at: those around the boundary first, where most waits; on large graphs not all.
    """
    return at_overheads(graph, weights, [overhead])[0]


def at_overheads(graph: Graph, weights: np.ndarray, overheads: Sequence[float]) -> list[Bound]:
    """`at_overhead` for several overheads at once: what waits at an op is looked up once."""
    once = float(weights[graph.needed].sum())
    extra = np.array([max(0.0, overhead) * once * (1 + 1e-9) for overhead in overheads])
    best = [single_op(graph)] * len(extra)
    for v, cost, held in _first_runs(graph, weights):
        own = graph.resident_bytes + working_set(graph, v)
        if own + held.sum() <= min((b.bytes for b in best), default=0):
            continue
        for k, waiting in enumerate(kernel.least_waiting(cost, held, extra).tolist()):
            if own + int(waiting) > best[k].bytes:
                best[k] = Bound(own + int(waiting), v)
    return best


def extra_at(graph: Graph, weights: np.ndarray, peak: int) -> float:
    """The least extra cost of a schedule with that peak, resident bytes included; infinite where there is none."""
    return extras_at(graph, weights, [peak])[0]


def extras_at(graph: Graph, weights: np.ndarray, peaks: Sequence[int]) -> list[float]:
    """`extra_at` for several peaks at once."""
    least = single_op(graph).bytes
    found = np.array([np.inf if peak < least else 0.0 for peak in peaks])
    tops = np.array(peaks, np.float64)
    for v, cost, held in _first_runs(graph, weights):
        excess = graph.resident_bytes + working_set(graph, v) + held.sum() - tops
        if (excess > 0).any():
            found = np.maximum(found, kernel.least_cost(cost, held, excess))
    return (found * (1 - 1e-9)).tolist()


def most_waiting(graph: Graph, weights: np.ndarray, count: int) -> list[int]:
    """The ops at whose first runs most is live or must be made again."""
    total = {v: working_set(graph, v) + held.sum() for v, _, held in _first_runs(graph, weights)}
    return sorted(total, key=lambda v: (-total[v], v))[:count]


def _first_runs(graph: Graph, weights: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(op, cost of each row, bytes of each row), from the end of forward outwards."""
    order = np.flatnonzero(graph.needed)
    middle = graph.boundary
    if middle is None:
        middle = next((i for i, o in enumerate(graph.ops) if o.backward), len(graph.ops) // 2)
    by = order[np.argsort(np.abs(order - middle), kind="stable")]
    weights = np.ascontiguousarray(weights, np.float64)
    for v in by[: max(25, EDGES // max(1, len(graph.arrays.in_ids) + len(graph.ops)))].tolist():
        cost, held = kernel.rows(v, graph.needed, weights, *graph.arrays)
        yield v, cost, held
