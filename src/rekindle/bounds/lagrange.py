"""A bound by Lagrangian relaxation, for graphs of any size: values live, or recomputed, at the first runs of a row of ops.

A relaxation of the program of `staged` by prices: on memory at each of v_1, ..., v_K (together 1), and on cost. The
relaxed program falls apart by value: each is saved or recomputed from stage to stage, at least price. Recomputing it
takes its inputs, live then or recomputed too. An input that waits for its own sake at that time is free; the price of
any other input is shared equally by the ops that read it (together no more than its price, so that the sum stays below
the truth). The sum of all prices, less the price of the extra cost that is allowed, is a bound for any choice of prices
(weak duality). The prices climb by subgradients (Held, Wolfe, Crowder, Validation of subgradient optimization, 1974;
here with multiplicative steps, as the prices of memory are shares). O((edges + values * K) K) per evaluation, at the worst.

First with the one op where most waits, where no price of memory is left to choose: on residual networks and
transformers that comes close to the linear program of one stage, in a fraction of its time. More ops add little.
"""

from __future__ import annotations

import numpy as np

from ..kernels import lagrange as kernel
from ..model.floor import Bound, single_op, working_set
from ..model.graph import Graph
from ..shares import EPS
from .staged import PATH_OPS, path_through
from .waiting import at_overhead

# How the prices are searched; guesses.
SUBGRADIENT_STEPS = 60
FIRST_STEP = 4.0  # the logarithm of the largest change of a price in the first step
FIRST_SHARE = 0.5  # of the op where most waits, in the first prices
WIDENINGS, HALVINGS = 60, 12  # times that the interval of the price of cost is widened, and then halved


def lagrangian(
    graph: Graph,
    weights: np.ndarray,
    overhead: float,
    stages: int = PATH_OPS,
    iterations: int = SUBGRADIENT_STEPS,
    through: int | None = None,
) -> Bound:
    """A bound on the peak of every schedule whose extra cost is at most `overhead` of running each needed op once.

    through : an op to be among v_1, ..., v_K; else the one that says most by itself.
    """
    floor = at_overhead(graph, weights, overhead) if through is None else single_op(graph)
    op = floor.op if through is None else through
    if op is None or not graph.needed[op]:
        return floor
    extra = float(weights[graph.needed].sum()) * max(0.0, overhead) * (1 + EPS)
    best = Relaxed(graph, weights, [op], extra).best(np.ones(1))[0]
    if stages > 1:
        best = max(best, _climb(graph, weights, path_through(graph, op, stages), op, extra, iterations))
    found = graph.resident_bytes + int(np.ceil(best * (1 - EPS) - 1e-6))
    return Bound(found, op) if found > floor.bytes else floor


def _climb(graph: Graph, weights: np.ndarray, path: list[int], op: int, extra: float, iterations: int) -> float:
    """The best bound met in so many steps, in bytes without the resident ones."""
    prices = np.full(len(path), (1 - FIRST_SHARE) / len(path))
    prices[path.index(op)] += FIRST_SHARE
    relaxed = Relaxed(graph, weights, path, extra)
    best = 0.0
    for t in range(iterations):
        bound, memory = relaxed.best(prices)
        best = max(best, bound)
        spread = float(memory.max() - memory.min())
        if spread <= 0:
            break
        prices = prices * np.exp(FIRST_STEP / np.sqrt(t + 1) * (memory - memory.max()) / spread)
        prices = np.maximum(prices / prices.sum(), 1e-12)
        prices /= prices.sum()
    return best


class Relaxed:
    """The relaxed program of one path, as a function of its prices."""

    def __init__(self, graph: Graph, weights: np.ndarray, path: list[int], extra: float):
        a = graph.arrays
        since, read = kernel.needs(np.array(path, np.int64), graph.needed, a)
        self.arrays = a
        producing = a.producer >= 0
        made = np.bincount(a.producer[producing], a.bytes[producing], len(graph.ops))
        again = graph.needed & a.recompute
        readers = np.bincount(a.in_ids[np.repeat(again, np.diff(a.in_ptr))], minlength=len(graph.values))
        share = 1 / np.maximum(1, readers)
        self.program = kernel.Program(np.ascontiguousarray(weights, np.float64), made, share, since, read)
        self.own = np.array([working_set(graph, v) for v in path], np.float64)
        self.extra = extra
        once = float(weights[graph.needed].sum())
        self.run_price = float(a.bytes.sum()) / once if once > 0 else 1.0

    def at(self, prices: np.ndarray, run_price: float) -> tuple[float, float, np.ndarray]:
        """(bound, cost of runs again, memory at each op of the path) at these prices."""
        memory = np.zeros(len(prices) + 1)
        price = np.concatenate([[0.0], prices])
        runs = kernel.run_prices(price, run_price, self.program, self.arrays)
        total, spent = kernel.cheapest(price, run_price, runs, memory, self.program, self.arrays)
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
