"""A bound by a linear program: values live, or recomputed, at the first runs of a row of ops.

Take ops v_1, ..., v_K of which each depends on the one before: their first runs come in that order in every schedule.
Stage k is the time from the first run of v_{k-1} to the first run of v_k, and stage K + 1 the rest. r[k, i]: op i runs
in stage k (at least once). x[k, u]: value u is live just before v_k runs first. A live value was live a stage before, or
its op ran since; an op that runs finds each input live a stage before, or made since. Every schedule is a point of this
program, so its optimum is a bound, with any choice of ops and without the smaller values too. With `integer` it is a
mixed-integer program, and the bound is what the solver has proven.

Checkmate (Jain et al., MLSys 2020, arXiv:1910.02653) has one stage per op, of one given order.
"""

from __future__ import annotations

import numpy as np

from ..exact.rows import Rows
from ..kernels import waiting as kernel
from ..model.floor import Bound, single_op, working_set
from ..model.graph import Graph
from ..saying.shares import EPS
from .waiting import at_overhead

MARGIN = 2e-6  # HiGHS's tolerances, of the largest value or of all costs
# Allowed beyond the extra cost, of all costs. A schedule that costs exactly as much must stay a point of the program: within
# 1e-6 HiGHS cut such schedules off (measured: within 3e-6 it no longer did), and the "bound" lay above their peak.
SLACK = 1e-5
INFEASIBLE = 2  # `status` of scipy.optimize.milp

# Two guesses.
# Nodes of the mixed-integer search: a count, so that all machines fast enough for the time limit give the same answer.
MOST_BRANCHES = 2000
HEAVY_SHARE = 0.999  # of all bytes: the largest values that together hold it are looked at


def staged(
    graph: Graph, weights: np.ndarray, overhead: float, stages: int, integer: bool = False,
    seconds: float | None = None, through: int | None = None,
) -> Bound:  # fmt: skip
    """A bound on the peak of every schedule whose extra cost is at most `overhead` of running each needed op once.

    through : an op to be among v_1, ..., v_K; else the one that says most by itself. With one stage this is the
    knapsack of `at_overhead`, with the inputs of each recomputed op live or recomputed too.
    """
    floor = at_overhead(graph, weights, overhead) if through is None else single_op(graph)
    op = floor.op if through is None else through
    model = Staged(graph, weights, path_through(graph, op, stages))
    if not model.path or not model.values:
        return floor
    extra = float(weights[graph.needed].sum()) * max(0.0, overhead) * (1 + EPS)
    found = graph.with_resident(int(np.ceil(model.least(extra, integer, seconds))))
    return Bound(found, op) if found > floor.bytes else floor


def staged_cost(graph: Graph, weights: np.ndarray, peak: int, through: int, integer: bool, seconds: float) -> float:
    """The least extra cost of a schedule with that peak, resident bytes included, by one stage at the op `through`;
    infinite where there is none."""
    model = Staged(graph, weights, [through])
    limit = graph.beside_resident(peak)
    # A peak that fits only just must not fail by HiGHS's tolerance.
    return max(0.0, model.least(None, integer, seconds, limit * (1 + MARGIN) + 1)) if model.values else 0.0


class Staged:
    """The program's rows. Columns: r[k, i] for k = 0 .. K, then x[k, u] for k = 0 .. K - 1, then the peak."""

    def __init__(self, graph: Graph, weights: np.ndarray, path: list[int]):
        self.graph, self.weights = graph, weights
        a = graph.arrays
        read = np.zeros(len(graph.values), np.bool_)
        for i in np.flatnonzero(graph.needed):
            read[list(graph.ops[i].inputs)] = True
        read[a.keep] = True
        ids = np.flatnonzero(read & (a.producer >= 0) & (a.bytes > 0))
        ids = ids[np.argsort(-a.bytes[ids], kind="stable")]
        total = np.cumsum(a.bytes[ids])
        self.values = ids[: int(np.searchsorted(total, HEAVY_SHARE * total[-1])) + 1].tolist() if len(ids) else []
        self.ops = sorted({int(a.producer[v]) for v in self.values})
        self.path = path
        self.op_at = {i: j for j, i in enumerate(self.ops)}
        self.value_at = {v: j for j, v in enumerate(self.values)}
        self.descends = [_after(graph, v) for v in self.path]

    def least(
        self, extra: float | None, integer: bool = False, seconds: float | None = None, limit: float | None = None
    ) -> float:
        """The least peak, in bytes without the resident ones, within an extra cost; or with `limit`, a peak in such
        bytes, the least extra cost."""
        a, ops, values, path = self.graph.arrays, self.ops, self.values, self.path
        n, m, stages = len(ops), len(values), len(path)
        r, x = (lambda k, j: k * n + j), (lambda k, j: (stages + 1) * n + k * m + j)
        peak = (stages + 1) * n + stages * m
        lower, upper = np.zeros(peak + 1), np.ones(peak + 1)
        upper[peak] = np.inf
        scale = float(max(1, a.bytes[values].max()))
        rows = Rows()
        for k in range(stages + 1):
            for j, i in enumerate(ops):
                if any(self.descends[q][i] or (q > k and path[q] == i) for q in range(k, stages)):
                    upper[r(k, j)] = 0
        for k, v in enumerate(path):
            if v in self.op_at:
                lower[r(k, self.op_at[v])] = 1

        def source(k: int, u: int) -> list[tuple[int, float]]:
            """Where value u comes from in stage k: live before, made by the op that began the stage, or made in it."""
            p = self.op_at[int(a.producer[u])]
            terms = [(r(k, p), -1.0)]
            if k:
                terms.append((x(k - 1, self.value_at[u]), -1.0))
                if path[k - 1] == ops[p]:
                    terms.append((r(k - 1, p), -1.0))
            return terms

        for k in range(stages + 1):
            for j, i in enumerate(ops):
                if upper[r(k, j)]:
                    for u in dict.fromkeys(self.graph.ops[i].inputs):
                        if u in self.value_at:
                            rows.add([(r(k, j), 1.0), *source(k, u)], 0.0)
        for k, v in enumerate(path):
            for j, u in enumerate(values):
                p = int(a.producer[u])
                if p == v or self.descends[k][p]:
                    upper[x(k, j)] = 0
                else:
                    rows.add([(x(k, j), 1.0), *source(k, u)], 0.0)
            own = working_set(self.graph, v)
            for u in set(self.graph.ops[v].inputs):
                if u in self.value_at:
                    lower[x(k, self.value_at[u])] = 1
                    own -= int(a.bytes[u])
            rows.add([*((x(k, j), a.bytes[u] / scale) for j, u in enumerate(values)), (peak, -1.0)], -own / scale)
        for u in self.graph.keep:
            if u in self.value_at:
                rows.add(source(stages, u), -1.0)
        for j, i in enumerate(ops):
            every = [(r(k, j), 1.0) for k in range(stages + 1)]
            rows.add([(c, -t) for c, t in every], -1.0)
            if not a.recompute[i]:
                rows.add(every, 1.0)
        cost = self.weights[ops]
        unit = float(cost.sum()) or 1.0
        spent = [(r(k, j), cost[j] / unit) for k in range(stages + 1) for j in range(n)]
        objective = np.zeros(peak + 1)
        if limit is None:
            rows.add(spent, 1 + (extra or 0.0) / unit + SLACK)
            objective[peak] = 1
        else:
            upper[peak] = limit / scale
            objective[[c for c, _ in spent]] = [t for _, t in spent]
        whole = np.ones(peak + 1) if integer else np.zeros(peak + 1)
        whole[peak] = 0
        options: dict[str, float] = {"node_limit": MOST_BRANCHES}
        if seconds is not None:
            options["time_limit"] = seconds
        from scipy.optimize import Bounds, milp  # here, since importing it takes as long as all of rekindle

        found = milp(
            objective, constraints=rows.constraint(peak + 1), bounds=Bounds(lower, upper), integrality=whole,
            options=options,
        )  # fmt: skip
        bound = found.mip_dual_bound if integer else (found.fun if found.status == 0 else None)
        if limit is None:
            return 0.0 if bound is None else (float(bound) - MARGIN) * scale
        if found.status == INFEASIBLE:
            return float("inf")
        return 0.0 if bound is None else (float(bound) - 1 - MARGIN) * unit


def path_through(graph: Graph, op: int | None, count: int) -> list[int]:
    """At most `count` ops of the heaviest path through `op`, which is one of them."""
    if count == 1 and op is not None:
        return [op] if graph.needed[op] else []
    return _spread(_heaviest_path(graph, op), count, op)


def _heaviest_path(graph: Graph, through: int | None) -> list[int]:
    """A row of needed ops each of which reads from the one before, `through` among them; the most bytes in all."""
    needed = np.flatnonzero(graph.needed).tolist()
    made = {i: sum(int(graph.arrays.bytes[v]) for v in graph.ops[i].outputs) + 1 for i in needed}
    before = {i: {int(graph.arrays.producer[v]) for v in graph.ops[i].inputs} & made.keys() for i in needed}
    upstream = set(needed) if through is None else {through}
    for i in reversed(needed):
        if i in upstream:
            upstream |= before[i]
    after = set() if through is None else set(np.flatnonzero(_after(graph, through)).tolist()) & set(needed)
    most: dict[int, tuple[int, int]] = {}
    for i in needed:
        if i in upstream or i in after:
            ways = [(most[p][0], p) for p in before[i] if p in most and (i in upstream or p in after or p == through)]
            best = max(ways, default=(0, -1))
            most[i] = best[0] + made[i], best[1]
    at = max((i for i in most if i in after or not after), key=lambda i: most[i][0], default=-1)
    path = []
    while at >= 0:
        path.append(at)
        at = most[at][1]
    return path[::-1]


def _spread(path: list[int], count: int, through: int | None) -> list[int]:
    """At most `count` of the path's ops: `through` and those next to it, the others evenly spread."""
    if len(path) <= count:
        return path
    at = path.index(through) if through in path else len(path) // 2
    near = set(range(max(0, at - count // 6), min(len(path), at + count // 6 + 1)))
    far = np.linspace(0, len(path) - 1, count - len(near)).astype(int).tolist()
    return [path[i] for i in sorted(near | set(far))]


def _after(graph: Graph, v: int) -> np.ndarray:
    """bool [ops]: what always runs after the first run of op v, v itself left out."""
    after: np.ndarray = kernel.depends(v, graph.arrays)
    after[v] = False
    return after
