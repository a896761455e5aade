"""What must be live, or made again, at the first runs of a row of ops, for graphs of any size: Lagrangian relaxation.

The program of `staged`, without the demand that what is made again finds its inputs; every first run still does. With a
price on memory at each of v_1, ..., v_K (together 1) and a price on cost, what is left falls apart by value: each is
kept or made again from stage to stage, at least price, in O(K). The sum of these, less the price of the extra cost that
is allowed, is a bound for any prices (weak duality). The prices start at the op where most waits, where they give the
knapsack of `at_overhead`, and climb by subgradients (Held, Wolfe, Crowder, Validation of subgradient optimization,
1974; here multiplicative steps, as the prices of memory are shares). O(edges + iterations * values * K).

On residual networks and transformers it says what `at_overhead` does, or up to 4 % more; a program of one stage says
much more there, as it has what is made again find its inputs. So `best` does not ask for it.
"""

from __future__ import annotations

import numpy as np

from ..graph import Graph
from ..kernels import lagrange as kernel
from .base import Bound, working_set
from .staged import _heaviest_path, _spread
from .waiting import at_overhead

HALVINGS = 12  # of the interval in which the best price of cost lies
WIDENINGS = 60
FIRST = 0.5  # share of the op where most waits in the first prices
STEP = 4.0


def lagrangian(
    graph: Graph, weights: np.ndarray, overhead: float, stages: int = 24, iterations: int = 60, through: int | None = None
) -> Bound:  # fmt: skip
    """A bound on the peak of every schedule whose extra cost is at most `overhead` of running each needed op once.

    through : an op to be among v_1, ..., v_K; else the one that says most by itself.
    """
    floor = at_overhead(graph, weights, overhead)
    op = floor.op if through is None else through
    path = _spread(_heaviest_path(graph, op), stages, op)
    if not path:
        return floor
    extra = float(weights[graph.needed].sum()) * max(0.0, overhead) * (1 + 1e-9)
    prices = np.full(len(path), (1 - FIRST) / len(path))
    prices[path.index(op) if op in path else len(path) // 2] += FIRST
    relaxed = Relaxed(graph, weights, path, extra)
    best = 0.0
    for t in range(iterations):
        bound, memory = relaxed.best(prices / prices.sum())
        best = max(best, bound)
        spread = float(memory.max() - memory.min())
        if spread <= 0:
            break
        prices *= np.exp(STEP / np.sqrt(t + 1) * (memory - memory.max()) / spread)
        prices = np.maximum(prices / prices.sum(), 1e-12)
    found = graph.resident_bytes + int(np.ceil(best * (1 - 1e-9) - 1e-6))
    return Bound(found, op) if found > floor.bytes else floor


class Relaxed:
    """The relaxed program of one path, as a function of its prices."""

    def __init__(self, graph: Graph, weights: np.ndarray, path: list[int], extra: float):
        a = graph.arrays
        since, read = kernel.needs(np.array(path, np.int64), graph.needed, *a)
        used = np.flatnonzero((since[:, -1] > 0) & (a.bytes > 0))
        self.since, self.read, self.size = since[used], read[used], a.bytes[used].astype(np.float64)
        # Each value is decided by itself, so the outputs of one op share its cost by their sizes.
        op = a.producer[used]
        made = np.bincount(op, self.size, len(graph.ops))[op]
        self.cost = np.where(a.recompute[op], weights[op] * self.size / made, np.inf)
        self.own = np.array([working_set(graph, v) for v in path], np.float64)
        self.extra = extra
        finite = self.cost[np.isfinite(self.cost)]
        self.run_price = float(self.size.sum() / finite.sum()) if finite.sum() > 0 else 1.0

    def at(self, prices: np.ndarray, run_price: float) -> tuple[float, float, np.ndarray]:
        """(bound, cost of runs again, memory at each op of the path) at these prices."""
        memory = np.zeros(len(prices) + 1)
        by_stage = np.concatenate([[0.0], prices])
        total, spent = kernel.cheapest(by_stage, run_price, self.size, self.cost, self.since, self.read, memory)
        return total + float(prices @ self.own) - run_price * self.extra, spent, memory[1:] + self.own

    def best(self, prices: np.ndarray) -> tuple[float, np.ndarray]:
        """(bound, memory at each op of the path) at these prices of memory and the best price of cost.

        The higher that price, the less is spent: it lies where the allowance is just used up. There the memory is that
        of a mixture of what is best a little below and a little above.
        """
        low = high = self.at(prices, self.run_price)
        low_price = high_price = self.run_price
        best = low[0]
        for _ in range(WIDENINGS):
            if high[1] > self.extra:
                high_price *= 4
                high = self.at(prices, high_price)
            elif low[1] <= self.extra:
                low_price /= 4
                low = self.at(prices, low_price)
            else:
                break
            best = max(best, high[0], low[0])
        for _ in range(HALVINGS):
            middle_price = float(np.sqrt(low_price * high_price))
            middle = self.at(prices, middle_price)
            best = max(best, middle[0])
            if middle[1] > self.extra:
                low, low_price = middle, middle_price
            else:
                high, high_price = middle, middle_price
        self.run_price = high_price if np.isfinite(high_price) and high_price > 0 else self.run_price
        share = (self.extra - high[1]) / (low[1] - high[1]) if low[1] > self.extra >= high[1] else 0.0
        return best, share * low[2] + (1 - share) * high[2]
