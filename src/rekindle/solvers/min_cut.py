"""The values that forward saves for backward, as a minimum cut, for every price on recomputation.

After He, Yu, Transcending Runtime-Memory Tradeoffs in Checkpointing by being Fusion Aware, MLSys 2023 (the partitioner
of torch.compile). There recomputation is free, but for a list of ops that may not run again; here it has a price.

Problem: of the values that forward makes, choose those to keep, so that

    bytes kept + price * cost of the ops that run again

is least, where every value that backward reads is saved or recomputed, from inputs that are saved or recomputed in turn.
The answers over all prices are the corners of a convex curve, from the fewest bytes (price 0) to where nothing runs
again. They are found from both ends: the price at which two answers are equal either has a better one, which lies between
them, or they are neighbours (the widest gaps first). Between neighbours lie some that follow one up to a part of the
forward and the other behind it.

As a cut: a node for each value ("it is there in backward") and for each op ("it runs again"). From the source to what
backward reads, and from an op to its inputs, edges that are never cut; from a value to its op an edge of the value's
bytes, cut where the value is kept; from an op to the sink one of its price.

Optimality: for this objective at each price, up to rounding to a millionth of all bytes. It says nothing about the
peak: recomputed values take room in backward, all of them at once if the price is low, and this is not counted.

Complexity: one maximum flow for each corner and each gap between two, at most 96, on a graph with as many edges as
the forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, pairwise

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from ..model.graph import Graph
from ..model.schedule import Schedule
from ..problem import Problem, register
from ..structure.saved import Dropping, runs_from_saved

SCALE = 10**8  # all bytes, in units of the flow, whose capacities have 32 bits
NEVER = 10**9  # more than all other edges together


# How many plans are proposed; guesses.
MOST_FLOWS = 96  # prices asked, each by one maximum flow
STEP_SHARE = 0.06  # by about this share saved bytes grow from one proposal to the next
MOST_PARTS = 8  # parts of the forward in which neighbouring answers are mixed


@register(
    "min-cut",
    graphs="any",
    objective="bytes kept for backward + price * cost of the ops that run again, for every price",
    optimal="for its objective, up to rounding",
    complexity="one maximum flow per answer, at most 96",
    citation="after He, Yu, Transcending Runtime-Memory Tradeoffs in Checkpointing by being Fusion Aware, MLSys 2023",
)
def min_cut(problem: Problem) -> Iterator[Schedule]:
    """Saves a minimum cut of the values of forward, once for each price of recomputation; good where little is recomputed."""
    graph = problem.graph
    yield Schedule.baseline(graph, "min-cut")
    network = Network(graph, problem.weights)
    sets = [c.kept for c in corners(network, lambda: problem.time_left <= 0)]
    for kept in [*sets, *between(sets, graph.arrays.producer, graph.arrays.bytes)]:
        if problem.time_left <= 0:
            return
        yield Schedule.from_runs(
            graph, runs_from_saved(graph, np.flatnonzero(kept).tolist(), network.dropping), "min-cut"
        )


@dataclass(frozen=True)
class Cut:
    """A set of saved values.

    kept : bool [values of the graph].
    bytes : bytes of the saved values.
    cost : cost of the ops that run again.
    """

    kept: np.ndarray
    bytes: float
    cost: float


def corners(network: Network, stop: Callable[[], bool]) -> list[Cut]:
    """The answers over all prices, in order of rising bytes; the widest gaps first, and at most
    `MOST_FLOWS`."""
    found = [network.cut(0.0), network.cut(network.dearest)]
    gaps: list[tuple[float, int, Cut, Cut]] = []
    tick = count()

    def note(a: Cut, b: Cut) -> None:
        if a.bytes < b.bytes and a.cost > b.cost:
            heappush(gaps, ((a.bytes - b.bytes) * (a.cost - b.cost), next(tick), a, b))

    note(*found)
    for _ in range(MOST_FLOWS - 2):
        if not gaps or stop():
            break
        _, _, a, b = heappop(gaps)
        price = (b.bytes - a.bytes) / (a.cost - b.cost)
        c = network.cut(price)
        if c.bytes + price * c.cost < (a.bytes + price * a.cost) * (1 - 1e-6):
            found.append(c)
            note(a, c)
            note(c, b)
    return sorted(found, key=lambda c: c.bytes)


def between(sets: list[np.ndarray], producer: np.ndarray, size: np.ndarray) -> Iterator[np.ndarray]:
    """One set up to a part of the forward and the next one behind it. In a network of equal blocks a price changes all
    of them at once; so some are changed and others are not."""
    for a, b in pairwise(sets):
        less, more = float(size[a].sum()), float(size[b].sum())
        changed = np.flatnonzero(a != b)
        changed = changed[np.argsort(producer[changed], kind="stable")]
        parts = min(len(changed), MOST_PARTS, round((more - less) / (STEP_SHARE * max(more, 1.0))))
        done = np.cumsum(size[changed])
        for part in range(1, parts):
            k = int(np.searchsorted(done, done[-1] * part / parts))
            split = producer[changed[min(k, len(changed) - 1)]]
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

    @property
    def dearest(self) -> float:
        """A price, in bytes per unit of cost, at which nothing that costs anything runs again."""
        cost = self.cost[self.cost > 0]
        return float(self.bytes.sum() / cost.min()) if len(cost) else 0.0

    def cut(self, price: float) -> Cut:
        """The cut at a price, in bytes per unit of cost."""
        keep = np.zeros(len(self.dropping.drop_at), np.bool_)
        if not len(self.values):
            return Cut(keep, 0.0, 0.0)
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
        cut = reached[self.made[:, 0]] & ~reached[self.made[:, 1]]
        keep[self.values[cut]] = True
        return Cut(keep, float(self.bytes[cut].sum()), float(self.cost[reached[self.ops_nodes]].sum()))

    @property
    def ops_nodes(self) -> np.ndarray:
        """int64 [ops]: the node of each."""
        return len(self.values) + np.arange(len(self.ops))
