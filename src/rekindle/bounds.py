"""Certified lower bounds: what no schedule can go below."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from .graph import Graph

AROUND = 12  # ops on each side of the boundary at which `at_overhead` looks


class Bound(NamedTuple):
    """bytes: a peak (resident included) below which no schedule exists; op: id of the op that sets it, or None."""

    bytes: int
    op: int | None


def single_op(graph: Graph) -> Bound:
    """The working set of the largest op, or everything that must be live at the end. O(edges).

    While an op that must run does run, all its inputs and outputs are live, and its workspace. An output that
    may be written over an input costs nothing.
    """
    a = graph.arrays
    best = Bound(graph.resident_bytes + int(a.bytes[a.keep].sum()), None)
    for i in np.flatnonzero(graph.needed):
        held = graph.resident_bytes + _working_set(graph, int(i))
        if held > best.bytes:
            best = Bound(held, int(i))
    return best


def at_overhead(graph: Graph, weights: np.ndarray, overhead: float) -> Bound:
    """A bound on the peak of every schedule whose extra cost is at most `overhead` of running each needed op once.

    weights : float64 [ops], the cost of one run of each op.

    When op v runs for the first time, a value that was made before it in every schedule and is read after it in every
    schedule is live, or its op runs again later. So the peak is at least v's working set plus all such values less the
    most bytes that can be made again within the extra cost: a knapsack, bounded by its fractional relaxation.
    O((n + edges) log n) per op looked at: those around the boundary, where most waits.
    """
    best = single_op(graph)
    needed = graph.needed
    extra = max(0.0, overhead) * float(weights[needed].sum())
    for v in _looked_at(graph):
        held = graph.resident_bytes + _working_set(graph, v) + _waiting(graph, weights, v, extra * (1 + 1e-9))
        if held > best.bytes:
            best = Bound(held, v)
    return best


def _working_set(graph: Graph, i: int) -> int:
    a, op = graph.arrays, graph.ops[i]
    held = sum(int(a.bytes[v]) for v in {*op.inputs, *op.outputs}) + op.workspace
    if any(a.producer[v] >= 0 and a.bytes[v] >= a.bytes[op.outputs[0]] for v in op.inplace):
        held -= int(a.bytes[op.outputs[0]])
    return held


def _looked_at(graph: Graph) -> list[int]:
    order = np.flatnonzero(graph.needed)
    middle = graph.boundary
    if middle is None:
        middle = next((i for i, o in enumerate(graph.ops) if o.backward), len(graph.ops) // 2)
    at = int(np.searchsorted(order, middle))
    return [int(i) for i in order[max(0, at - AROUND) : at + AROUND + 1]]


def _waiting(graph: Graph, weights: np.ndarray, v: int, extra: float) -> int:
    """Least bytes of values that wait while v runs for the first time, beside its own inputs and outputs."""
    a, ops, needed = graph.arrays, graph.ops, graph.needed
    before = _closure(
        len(ops), (int(a.producer[u]) for u in ops[v].inputs), lambda i: [int(a.producer[u]) for u in ops[i].inputs]
    )
    after = _closure(len(ops), (c for u in ops[v].outputs for c in graph.consumers[u]),
                     lambda i: [c for u in ops[i].outputs for c in graph.consumers[u]])  # fmt: skip
    own = {*ops[v].inputs, *ops[v].outputs}
    rows: list[tuple[float, int]] = []  # (cost of making again, bytes), one per producing op
    for i in np.flatnonzero(before):
        held = sum(
            int(a.bytes[u]) for u in ops[i].outputs
            if u not in own and any(after[c] and needed[c] for c in graph.consumers[u])
        )  # fmt: skip
        if held:
            rows.append((float(weights[i]) if a.recompute[i] else float("inf"), held))
    waiting = float(sum(b for _, b in rows))
    for cost, held in sorted(rows, key=lambda r: r[0] / r[1]):
        if cost > extra:
            if cost < float("inf"):
                waiting -= held * extra / cost
            break
        waiting -= held
        extra -= cost
    return max(0, int(waiting))


def _closure(n: int, start: Iterable[int], step: Callable[[int], list[int]]) -> np.ndarray:
    """bool [ops]: what is reached from `start`."""
    found = np.zeros(n, np.bool_)
    stack = [i for i in start if i >= 0]
    while stack:
        i = stack.pop()
        if not found[i]:
            found[i] = True
            stack += [j for j in step(i) if j >= 0 and not found[j]]
    return found
