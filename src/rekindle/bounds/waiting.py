"""A bound by a knapsack: the values that wait while one op runs for the first time, less those recomputed within a cost.

When op v runs for the first time, a value that was made before it in every schedule, and is read after it in every
schedule, is live, or its op runs again later. So the peak is at least v's working set and all such values less the most
bytes that can be recomputed within the extra cost. Holds for every order of the ops.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..kernels import waiting as kernel
from ..model.floor import Bound, remembered, single_op, working_set
from ..model.graph import Graph
from ..saying.shares import EPS

MOST_EDGES = 50_000_000  # edges read in all; measured to take a second
LEAST_OPS = 25  # ops looked at however large the graph is; a guess


def at_overhead(graph: Graph, weights: np.ndarray, overhead: float) -> Bound:
    """A bound on the peak of every schedule whose extra cost is at most `overhead` of running each needed op once.

    weights : float64 [ops], the cost of one run of each op.

    O((n + edges) log n) per op looked at: those at which most waits, as long as they can say more than what was found; on
    large graphs those around the boundary.
    """
    return at_overheads(graph, weights, [overhead])[0]


def at_overheads(graph: Graph, weights: np.ndarray, overheads: Sequence[float]) -> list[Bound]:
    """`at_overhead` for several overheads at once: what waits at an op is looked up once."""
    once = float(weights[graph.needed].sum())
    extra = np.array([max(0.0, overhead) * once * (1 + EPS) for overhead in overheads])
    best = [single_op(graph)] * len(extra)
    for v, total in _all_waiting(graph).items():
        if total <= min((b.bytes for b in best), default=0):
            break
        own = graph.with_resident(working_set(graph, v))
        cost, held = _cheapest_first(*_rows(graph, weights, v))
        for k, waiting in enumerate(kernel.least_waiting(cost, held, extra).tolist()):
            if own + int(waiting) > best[k].bytes:
                best[k] = Bound(own + int(waiting), v)
    return best


def waits_at_overhead(graph: Graph, weights: np.ndarray, overhead: float) -> int:
    """Bytes that wait beside some op's first run in every schedule whose extra cost is at most `overhead`, the op's own working
    set not counted: about as much waits however the op is computed."""
    extra = np.array([max(0.0, overhead) * float(weights[graph.needed].sum()) * (1 + EPS)])
    found = 0
    for v, total in _all_waiting(graph).items():
        if graph.beside_resident(total) <= found:
            break
        found = max(found, int(kernel.least_waiting(*_cheapest_first(*_rows(graph, weights, v)), extra)[0]))
    return found


def extra_at(graph: Graph, weights: np.ndarray, peak: int) -> float:
    """The least extra cost of a schedule with that peak, resident bytes included; infinite where there is none."""
    return extras_at(graph, weights, [peak])[0]


def extras_at(graph: Graph, weights: np.ndarray, peaks: Sequence[int]) -> list[float]:
    """`extra_at` for several peaks at once."""
    least = single_op(graph).bytes
    found = np.array([np.inf if peak < least else 0.0 for peak in peaks])
    tops = np.array(peaks, np.float64)
    for v, total in _all_waiting(graph).items():
        excess = total - tops
        if not (excess > 0).any():
            break
        found = np.maximum(found, kernel.least_cost(*_cheapest_first(*_rows(graph, weights, v)), excess))
    return (found * (1 - EPS)).tolist()


def most_waiting(graph: Graph, count: int) -> list[int]:
    """The ops at whose first runs most bytes are live or must be recomputed."""
    return list(_all_waiting(graph))[:count]


@remembered
def _all_waiting(graph: Graph) -> dict[int, float]:
    """op -> bytes (resident ones too) that its first run needs and that wait beside it, most first. On large graphs of those
    around the end of forward only."""
    order = np.flatnonzero(graph.needed)
    middle = graph.boundary
    if middle is None:
        middle = next((i for i, o in enumerate(graph.ops) if o.backward), len(graph.ops) // 2)
    by = order[np.argsort(np.abs(order - middle), kind="stable")]
    looked_at = by[: max(LEAST_OPS, MOST_EDGES // max(1, len(graph.arrays.in_ids) + len(graph.ops)))].tolist()
    free = np.zeros(len(graph.ops))
    total = {v: graph.with_resident(working_set(graph, v) + _rows(graph, free, v)[1].sum()) for v in looked_at}
    return dict(sorted(total.items(), key=lambda of: (-of[1], of[0])))


def _rows(graph: Graph, weights: np.ndarray, v: int) -> tuple[np.ndarray, np.ndarray]:
    """(cost, bytes), one row per op of which something waits at the first run of op v."""
    return kernel.rows(v, graph.needed, np.ascontiguousarray(weights, np.float64), graph.arrays)  # type: ignore[no-any-return]


def _cheapest_first(cost: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows in order of cost per byte."""
    by = np.argsort(cost / held, kind="stable")
    return cost[by], held[by]
