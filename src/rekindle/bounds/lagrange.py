"""A bound by Lagrangian relaxation, for graphs of any size: values live, or recomputed, at the first run of an op.

A relaxation of the program of `staged` with one stage, by a price on cost, in bytes at the op. The relaxed program falls
apart by value: each is saved or recomputed, at least price. Recomputing it takes its inputs, live then or recomputed too. An
input that waits for its own sake at that time is free; the price of any other input is shared equally by the ops that read
it (together no more than its price, so that the sum stays below the truth). The sum of all prices, less the price of the
extra cost that is allowed, is a bound for any price of cost (weak duality), and the best price is searched by halving.
O(edges + values) per evaluation.

At the op where most waits it comes close to the linear program of one stage on residual networks and transformers, in a
fraction of its time. The first runs of more ops, with prices that climb by subgradients, added little.
"""

from __future__ import annotations

import math

import numpy as np

from ..kernels import lagrange as kernel
from ..model.floor import Bound, single_op, working_set
from ..model.graph import Graph
from ..saying.shares import EPS
from .waiting import at_overhead

WIDENINGS, HALVINGS = 60, 12  # times that the interval of the price of cost is widened, and then halved; guesses


def lagrangian(graph: Graph, weights: np.ndarray, overhead: float, through: int | None = None) -> Bound:
    """A bound on the peak of every schedule whose extra cost is at most `overhead` of running each needed op once.

    through : the op; None: the one that says most by itself.
    """
    floor = at_overhead(graph, weights, overhead) if through is None else single_op(graph)
    op = floor.op if through is None else through
    if op is None or not graph.needed[op]:
        return floor
    extra = float(weights[graph.needed].sum()) * max(0.0, overhead) * (1 + EPS)
    best = Relaxed(graph, weights, op, extra).best()
    found = graph.with_resident(int(np.ceil(best * (1 - EPS) - 1e-6)))
    return Bound(found, op) if found > floor.bytes else floor


class Relaxed:
    """The relaxed program of one op, as a function of the price of cost."""

    def __init__(self, graph: Graph, weights: np.ndarray, op: int, extra: float):
        a = graph.arrays
        waits, read = kernel.needs(op, graph.needed, a)
        self.arrays = a
        producing = a.producer >= 0
        made = np.bincount(a.producer[producing], a.bytes[producing], len(graph.ops))
        again = graph.needed & a.recompute
        readers = np.bincount(a.in_ids[np.repeat(again, np.diff(a.in_ptr))], minlength=len(graph.values))
        share = 1 / np.maximum(1, readers)
        self.program = kernel.Program(np.ascontiguousarray(weights, np.float64), made, share, waits, read)
        self.own = float(working_set(graph, op))
        self.extra = extra
        once = float(weights[graph.needed].sum())
        self.first_price = float(a.bytes.sum()) / once if once > 0 else 1.0

    def at(self, run_price: float) -> tuple[float, float]:
        """(bound, cost of runs again) at this price of cost."""
        prices = kernel.run_prices(run_price, self.program, self.arrays)
        total, spent = kernel.cheapest(prices, self.program, self.arrays)
        return total + self.own - run_price * self.extra, spent

    def best(self) -> float:
        """The bound at the best price of cost. The higher the price, the less is spent: the best one lies where the allowance
        is just used up."""
        low_price = high_price = self.first_price
        low = high = self.at(low_price)
        best = low[0]
        for _ in range(WIDENINGS):
            if high[1] > self.extra:
                high_price *= 4
                high = self.at(high_price)
            elif low[1] <= self.extra:
                low_price /= 4
                low = self.at(low_price)
            else:
                break
            best = max(best, high[0], low[0])
        for _ in range(HALVINGS):
            middle_price = math.sqrt(low_price * high_price)
            bound, spent = self.at(middle_price)
            best = max(best, bound)
            if spent > self.extra:
                low_price = middle_price
            else:
                high_price = middle_price
        return best
