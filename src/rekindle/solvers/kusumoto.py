"""Chains of lower sets: recomputation for any graph as a shortest path.

Kusumoto, Inoue, Watanabe, Akiba, Koyama, A Graph Theoretic Framework of Recomputation Algorithms for Memory-Efficient
Backpropagation, NeurIPS 2019, arXiv:1905.11722.

Problem: a lower set of the forward DAG holds with a vertex all from which it is made. A strategy is a chain of them, from
none to all. Between two of them lies a block. A block saves its boundary, the values that are read outside the larger
set; the rest is recomputed when backward comes to the block. The peak is the largest, over blocks, of the bytes saved
before, twice the block (activations and gradients), and the gradients of the vertices that read the block and of all
else that these read. Least time of recomputation, within a budget for that peak.

Optimality: for this objective, among the chains of a family: all lower sets where there are few of them, else those that
consist of a vertex and all from which it is made (in large graphs, evenly spread ones of those). Time is counted in whole
levels. The objective is single level, knows one order in each block, and makes even the last block again; so each
strategy is also tried with the last block kept.

Both ends of the paper are tried at several budgets: least time, and most time, which leaves most to be freed by liveness.

Complexity: O(levels x sets^2) per budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..kernels import kusumoto as kernel
from ..model.schedule import Schedule
from ..problem import Problem, register
from ..structure.forward import Dag, forward_dag
from ..structure.saved import Dropping, runs_from_saved

# How fine the dynamic programme is; measured to take seconds.
ALL_MOST_SETS = 600  # a graph with at most so many lower sets is solved over all of them
SPANNED_MOST_SETS = 900  # the most sets of the smaller family, those that one vertex spans
TIME_LEVELS = 200  # levels in which time is counted
BUDGETS = 10  # how many are tried


class Chains(NamedTuple):
    """A family of lower sets, in order of size, and what each step from one to a larger one takes; see the kernel."""

    sets: np.ndarray  # bool [sets, vertices]
    boundary: np.ndarray  # bool [sets, vertices]
    subset: np.ndarray
    held: np.ndarray
    work: np.ndarray
    again: np.ndarray


@register(
    "kusumoto",
    graphs="any",
    objective="time of recomputation, within a budget for saved bytes + twice the block at hand + gradients around it",
    optimal="for its objective in levels of time, among chains of lower sets: all of them in small graphs, else those "
    "that a single vertex spans",
    complexity="O(levels x sets^2) per budget",
    citation="Kusumoto, Inoue, Watanabe, Akiba, Koyama, A Graph Theoretic Framework of Recomputation Algorithms for "
    "Memory-Efficient Backpropagation, NeurIPS 2019, arXiv:1905.11722",
)
def kusumoto(problem: Problem) -> Iterator[Schedule]:
    """Blocks between lower sets of the forward, by dynamic programming, at several budgets: a candidate from each, with
    least and with most recomputation."""
    graph = problem.graph
    yield Schedule.baseline(graph, "kusumoto")
    forward = forward_dag(graph)
    if forward is None:
        return
    weights = np.array([problem.weights[o] if o >= 0 else 0.0 for o in forward.ops])
    chains = steps(forward.dag, in_levels(weights), family(forward.dag))
    dropping = Dropping(graph)
    seen: set[tuple[int, ...]] = set()
    for budget in budgets(chains, int(forward.dag.cost.sum())):
        if problem.time_left <= 0:
            return
        for strategy in strategies(chains, budget):
            kept = np.flatnonzero(chains.boundary[strategy].any(axis=0)).tolist()
            last = np.flatnonzero(~chains.sets[strategy[-2]]).tolist()
            for vertices in (kept, sorted({*kept, *last})):
                if tuple(vertices) not in seen:
                    seen.add(tuple(vertices))
                    yield Schedule.from_runs(
                        graph, runs_from_saved(graph, forward.saved(vertices), dropping), "kusumoto"
                    )


def in_levels(weights: np.ndarray) -> np.ndarray:
    """int64; times in whole levels, as they are where they fit, else so that no sum of neighbours is off by more than
    one."""
    total = float(weights.sum())
    if total <= TIME_LEVELS and (weights == np.floor(weights)).all():
        return weights.astype(np.int64)
    return np.diff(np.floor(np.cumsum(weights / total) * TIME_LEVELS + 0.5), prepend=0.0).astype(np.int64)


def family(dag: Dag) -> np.ndarray:
    """bool [sets, vertices]; lower sets in order of size, none and all among them."""
    sets = all_lower_sets(dag, ALL_MOST_SETS)
    if sets is None:
        sets = spanned(dag)
    return sets[np.argsort(sets.sum(axis=1), kind="stable")]


def all_lower_sets(dag: Dag, most: int) -> np.ndarray | None:
    """Every lower set, or None where there are more than `most`."""
    n = len(dag.cost)
    reads = [0] * n
    for a, b in dag.edges:
        reads[b] |= 1 << a
    found = {0}
    queue = [0]
    for s in queue:  # grows while it is read
        for v in range(n):
            larger = s | 1 << v
            if larger != s and reads[v] & s == reads[v] and larger not in found:
                if len(found) == most:
                    return None
                found.add(larger)
                queue.append(larger)
    return np.array([[s >> v & 1 for v in range(n)] for s in queue], np.bool_)


def spanned(dag: Dag) -> np.ndarray:
    """The empty set, and for each vertex it and all from which it is made; evenly spread ones of them where they are
    many, the whole set among them."""
    n = len(dag.cost)
    sets = np.eye(n, dtype=np.bool_)
    for a, b in sorted(dag.edges, key=lambda e: e[1]):
        sets[b] |= sets[a]
    if n > SPANNED_MOST_SETS:
        sets = sets[np.linspace(0, n - 1, SPANNED_MOST_SETS).astype(np.int64)]
    return np.concatenate([np.zeros((1, n), np.bool_), np.unique(sets, axis=0)])


def steps(dag: Dag, times: np.ndarray, sets: np.ndarray) -> Chains:
    """The costs of each step from a set to a larger one."""
    n = len(dag.cost)
    reads = np.zeros((n, n), np.float64)
    reads[dag.head, dag.tail] = 1.0
    inside = sets.astype(np.float64)
    ahead = (inside @ reads.T > 0) & ~sets  # what reads the set
    beside = (ahead.astype(np.float64) @ reads > 0) & ~sets  # what else that reads
    boundary = ((~sets).astype(np.float64) @ reads > 0) & sets
    outside, edge = 1.0 - inside, boundary.astype(np.float64)
    size, time = dag.cost.astype(np.float64), times.astype(np.float64)
    around = ahead @ size + beside @ size
    held = (outside * size) @ edge.T
    return Chains(
        sets, boundary, inside @ outside.T == 0,
        held.astype(np.int64),
        (2 * ((outside * size) @ inside.T) + around).astype(np.int64),
        ((outside * time) @ (inside - edge).T).astype(np.int64),
    )  # fmt: skip


def budgets(chains: Chains, everything: int) -> list[int]:
    """From the least that a strategy takes, by bisection, to what keeping all takes."""
    low, high = 0, int(chains.work[0, -1])
    at_no_time = np.zeros_like(chains.again)
    while low < high:
        middle = (low + high) // 2
        kept, _ = kernel.cheapest_chains(middle, 0, chains.subset, chains.held, chains.work, at_no_time)
        low, high = (low, middle) if kept[-1, 0] < kernel.NONE else (middle + 1, high)
    top = max(low, everything + int(chains.work.diagonal().max()))
    return sorted({max(low, int(b)) for b in np.geomspace(max(1, low), max(1, top), BUDGETS)} | {low})


def strategies(chains: Chains, budget: int) -> list[list[int]]:
    """The sets, from none to all, of the chains with least and with most recomputation."""
    levels = int(chains.again[0, -1])
    kept, before = kernel.cheapest_chains(budget, levels, chains.subset, chains.held, chains.work, chains.again)
    reached = np.flatnonzero(kept[-1] < kernel.NONE)
    return [_chain(chains, before, int(t)) for t in dict.fromkeys(reached[[0, -1]].tolist())] if len(reached) else []


def _chain(chains: Chains, before: np.ndarray, time: int) -> list[int]:
    found = [len(chains.sets) - 1]
    while found[-1] != 0:
        i = int(before[found[-1], time])
        time -= int(chains.again[i, found[-1]])
        found.append(i)
    return found[::-1]
