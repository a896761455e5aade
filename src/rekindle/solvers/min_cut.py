"""What forward keeps for backward as a minimum cut, for a price on what is made again.

After He, Yu, Transcending Runtime-Memory Tradeoffs in Checkpointing by being Fusion Aware, MLSys 2023 (the partitioner
of torch.compile). There what is made again is free, up to a list of ops that may not be; here it has a price.

Problem: of the values that forward makes, choose those to keep, so that

    bytes kept + price * cost of the ops that run again

is least, where every value that backward reads is kept or made again, from inputs that are kept or made again in turn.
Prices are swept from 0 (the fewest bytes) up to where nothing is worth making again. Between two neighbouring answers
lie some that follow one up to a part of the forward and the other behind it.

As a cut: a node for each value ("it is there in backward") and for each op ("it runs again"). From the source to what
backward reads, and from an op to its inputs, edges that are never cut; from a value to its op an edge of the value's
bytes, cut where the value is kept; from an op to the sink one of its price.

Optimality: for this objective at each price, up to rounding to a millionth of all bytes. It says nothing about the
peak: what is made again takes room in backward, all of it at once if the price is low, and that is not counted.

Complexity: one maximum flow for each price, on a graph with as many edges as the forward.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from ..graph import Graph
from ..schedule import Schedule
from ..structure.saved import Dropping, runs_from_saved
from .base import Problem
from .registry import register

PRICES = 32
SPREAD = 1e4  # the dearest price over the least
SCALE = 10**8  # all bytes, in units of the flow
PARTS = (0.25, 0.5, 0.75)
NEVER = 10**9  # more than all other edges together


@register(
    "min-cut",
    graphs="any",
    objective="bytes kept for backward + price * cost of the ops that run again, for a sweep of prices",
    optimal="for its objective, up to rounding",
    complexity="one maximum flow per price",
    citation="after He, Yu, Transcending Runtime-Memory Tradeoffs in Checkpointing by being Fusion Aware, MLSys 2023",
)
def min_cut(problem: Problem) -> Iterator[Schedule]:
    """What is kept for backward, as a minimum cut, for every price on what is made again; good where little is."""
    graph = problem.graph
    yield Schedule.baseline(graph, "min-cut")
    network = Network(graph, problem.weights)
    sets: dict[bytes, np.ndarray] = {}
    for price in network.prices():
        if problem.time_left > 0:
            kept = network.kept(price)
            sets.setdefault(kept.tobytes(), kept)
    for kept in [*sets.values(), *between(list(sets.values()), graph.arrays.producer)]:
        if problem.time_left <= 0:
            return
        yield Schedule.from_runs(
            graph, runs_from_saved(graph, np.flatnonzero(kept).tolist(), network.dropping), "min-cut"
        )


def between(sets: list[np.ndarray], producer: np.ndarray) -> Iterator[np.ndarray]:
    """One set up to a part of the forward and the next one behind it. In a network of equal blocks a price changes all
    of them at once; so some are changed and others are not."""
    for a, b in zip(sets, sets[1:], strict=False):
        changed = np.sort(producer[a != b])
        for part in PARTS:
            split = changed[min(len(changed) - 1, int(part * len(changed)))]
            for first, last in ((a, b), (b, a)):
                yield np.where(producer < split, first, last)


class Network:
    """The flow network of a graph. Nodes: each candidate value, each op that makes one, the source, the sink.

    values : int64; the values that may be dropped. ops : int64; the ops that make them.
    """

    def __init__(self, graph: Graph, weights: np.ndarray):
        self.dropping = d = Dropping(graph)
        self.values = d.candidates
        a = graph.arrays
        self.ops = np.unique(a.producer[self.values])
        self.bytes, self.cost = a.bytes[self.values].astype(np.float64), weights[self.ops].astype(np.float64)
        n, m = len(self.values), len(self.ops)
        node = np.full(len(a.bytes), -1, np.int64)
        node[self.values] = np.arange(n)
        op_node = np.full(len(graph.ops), -1, np.int64)
        op_node[self.ops] = n + np.arange(m)
        self.source, self.sink = n + m, n + m + 1
        end = d.end_of_forward if d.end_of_forward is not None else len(d.order)
        later = {int(v) for o in d.order[end:] for v in graph.ops[o].inputs}
        never = [(self.source, int(node[v])) for v in sorted(later) if node[v] >= 0]
        never += [(int(op_node[o]), int(node[v])) for o in self.ops for v in set(graph.ops[o].inputs) if node[v] >= 0]
        self.never = np.array(never, np.int64).reshape(-1, 2)
        self.made = np.stack([np.arange(n), op_node[a.producer[self.values]]], axis=1)

    def prices(self) -> list[float]:
        """From least to dearest, in bytes per unit of cost."""
        total, cost = float(self.bytes.sum()), float(self.cost.sum())
        if total <= 0 or cost <= 0:
            return [0.0]
        return [0.0, *(total / cost * np.geomspace(SPREAD**-0.5, SPREAD**0.5, PRICES)).tolist()]

    def kept(self, price: float) -> np.ndarray:
        """bool [values of the graph]: what is kept."""
        keep = np.zeros(len(self.dropping.drop_at), np.bool_)
        if not len(self.values):
            return keep
        unit = SCALE / max(1.0, float(self.bytes.sum()))
        held = np.maximum(1, (self.bytes * unit).round()).astype(np.int64)
        # An op that would cost more than all bytes is never run again for them.
        again = np.minimum(2 * SCALE, (price * self.cost * unit).round()).astype(np.int64)
        edges = np.concatenate(
            [self.never, self.made, np.stack([self.ops_nodes, np.full_like(self.ops, self.sink)], 1)]
        )
        size = np.concatenate([np.full(len(self.never), NEVER), held, again]).astype(np.int32)
        n = self.sink + 1
        network = csr_array((size, (edges[:, 0], edges[:, 1])), shape=(n, n))
        left = network - maximum_flow(network, self.source, self.sink).flow
        left.eliminate_zeros()
        reached = np.zeros(n, np.bool_)
        reached[breadth_first_order(left, self.source, return_predecessors=False)] = True
        keep[self.values[reached[self.made[:, 0]] & ~reached[self.made[:, 1]]]] = True
        return keep

    @property
    def ops_nodes(self) -> np.ndarray:
        """int64 [ops]: the node of each."""
        return len(self.values) + np.arange(len(self.ops))
