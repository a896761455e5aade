"""The Lagrangian bound, value by value: each is saved while one op runs for the first time, or recomputed at a price."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiled import entry


class Program(NamedTuple):
    """The relaxed program of one op, as the loops below take it. A byte that is live while the op runs costs 1.

    weights : float64 [ops]; the cost of one run.
    made : float64 [ops]; bytes that one run makes.
    share : float64 [values]; 1 / the number of ops that read the value and may run again.
    waits, read : see `needs`.
    """

    weights: np.ndarray
    made: np.ndarray
    share: np.ndarray
    waits: np.ndarray
    read: np.ndarray


@entry
def needs(op, needed, graph):
    """(waits bool [values], read bool [values]): which values wait while an op runs for the first time, and which it reads.

    A value waits that must be present before that run has ended, and again after it: the ops before that make or read it
    cannot run later, since the op depends on them, and the ops after it that make or read it, or the end of the step, cannot
    come earlier. O(edges).
    """
    producer, keep = graph.producer, graph.keep
    in_ptr, in_ids, out_ptr, out_ids = graph.in_ptr, graph.in_ids, graph.out_ptr, graph.out_ids
    ops, values = len(graph.workspace), len(graph.bytes)
    after = np.zeros(ops, np.bool_)  # the op depends on `op`
    for i in range(ops):
        for j in range(in_ptr[i], in_ptr[i + 1]):
            p = producer[in_ids[j]]
            if p >= 0 and (p == op or after[p]):
                after[i] = True
    before = np.zeros(ops, np.bool_)  # `op` depends on the op, or is it
    early, late = np.zeros(values, np.bool_), np.zeros(values, np.bool_)
    read = np.zeros(values, np.bool_)
    for i in range(ops - 1, -1, -1):
        if not needed[i]:
            continue
        if i == op:
            before[i] = True
        for j in range(in_ptr[i], in_ptr[i + 1]):
            v = in_ids[j]
            if producer[v] >= 0:
                if before[i]:
                    before[producer[v]] = True
                    early[v] = True
                late[v] = late[v] or after[i]
                read[v] = read[v] or i == op
        for j in range(out_ptr[i], out_ptr[i + 1]):
            v = out_ids[j]
            early[v] = early[v] or (before[i] and i != op)
            late[v] = late[v] or after[i] or i == op or keep[v]
    return early & late, read


@entry
def run_prices(run_price, program, graph):
    """float64 [ops]: the price of recomputing each op after the one that is looked at, the price of its inputs included.

    An input is live then, or recomputed too. Where an input does not wait for its own sake, `share` of its price is charged to
    each op that reads it.
    """
    size, producer, in_ptr, in_ids = graph.bytes, graph.producer, graph.in_ptr, graph.in_ids
    prices = np.full(len(graph.workspace), np.inf)
    for i in range(len(prices)):
        if not graph.recompute[i]:
            continue
        prices[i] = run_price * program.weights[i]
        for j in range(in_ptr[i], in_ptr[i + 1]):
            u = in_ids[j]
            p = producer[u]
            if p >= 0 and size[u] > 0 and not program.waits[u] and not program.read[u]:
                prices[i] += program.share[u] * min(float(size[u]), prices[p] * size[u] / program.made[p])
    return prices


@entry
def cheapest(prices, program, graph):
    """(least sum of prices, cost of recomputations).

    prices: see `run_prices`; the outputs of one op share the price of its run by their sizes.
    """
    weights, made = program.weights, program.made
    size, producer, in_ptr, in_ids = graph.bytes, graph.producer, graph.in_ptr, graph.in_ids
    total, spent = 0.0, 0.0
    again = np.zeros(len(prices))  # how often each op is recomputed
    for v in range(len(size)):
        if size[v] == 0 or not program.waits[v]:
            continue
        p = producer[v]
        part = size[v] / made[p]
        stay = 0.0 if program.read[v] else float(size[v])
        anew = prices[p] * part
        if stay > anew:
            again[p] += part
        total += min(stay, anew)
    for i in range(len(prices) - 1, -1, -1):
        if again[i] == 0:
            continue
        spent += again[i] * weights[i]
        for j in range(in_ptr[i], in_ptr[i + 1]):
            u = in_ids[j]
            p = producer[u]
            if p < 0 or size[u] == 0 or program.waits[u] or program.read[u]:
                continue
            if size[u] > prices[p] * size[u] / made[p]:
                again[p] += program.share[u] * again[i] * size[u] / made[p]
    return total, spent
