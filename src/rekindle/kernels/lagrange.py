"""The Lagrangian bound, value by value: each is saved from stage to stage at the price of memory, or recomputed at the price
of a run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiled import entry


class Program(NamedTuple):
    """The relaxed program of one path of K ops, as the loops below take it.

    weights : float64 [ops]; the cost of one run.
    made : float64 [ops]; bytes that one run makes.
    share : float64 [values]; 1 / the number of ops that read the value and may run again.
    since, read : see `needs`.
    """

    weights: np.ndarray
    made: np.ndarray
    share: np.ndarray
    since: np.ndarray
    read: np.ndarray


@entry
def needs(path, needed, graph):
    """(since int16 [values, K + 3], read bool [values, K + 2]) for a path of K ops; stages and path count from 1.

    The first run of an op lies in a window of stages: after all ops of the path that it depends on, and not after the
    stage that ends with one that depends on it. There its inputs are present (live when the stage began, or made in
    it), and so are its outputs then. since[v, e]: value v must have been present in that stage or later, before stage
    e; 0: nowhere yet. read[v, k]: op k of the path reads v. O(edges + values K).
    """
    size, producer, keep = graph.bytes, graph.producer, graph.keep
    in_ptr, in_ids, out_ptr, out_ids = graph.in_ptr, graph.in_ids, graph.out_ptr, graph.out_ids
    workspace = graph.workspace
    stages = len(path) + 1
    place = np.zeros(len(workspace), np.int16)
    for k in range(len(path)):
        place[path[k]] = k + 1
    early = np.ones(len(workspace), np.int16)
    late = np.full(len(workspace), stages, np.int16)
    for i in range(len(workspace)):
        for j in range(in_ptr[i], in_ptr[i + 1]):
            p = producer[in_ids[j]]
            if p >= 0:
                early[i] = max(early[i], place[p] + 1 if place[p] else early[p])
    since = np.zeros((len(size), stages + 2), np.int16)
    read = np.zeros((len(size), stages + 1), np.bool_)
    for i in range(len(workspace) - 1, -1, -1):
        if not needed[i]:
            continue
        if place[i]:
            late[i] = place[i]
        for j in range(in_ptr[i], in_ptr[i + 1]):
            v = in_ids[j]
            if producer[v] >= 0:
                late[producer[v]] = min(late[producer[v]], late[i])
                since[v, late[i] + 1] = max(since[v, late[i] + 1], early[i])
                read[v, place[i]] = True
        # Outputs of an op of the path are there from the next stage on.
        there = place[i] + 1 if place[i] else early[i]
        end = place[i] + 1 if place[i] else late[i]
        for j in range(out_ptr[i], out_ptr[i + 1]):
            v = out_ids[j]
            since[v, end + 1] = max(since[v, end + 1], there)
            if keep[v]:
                since[v, stages + 1] = stages
    for v in range(len(size)):
        for e in range(1, stages + 2):
            since[v, e] = max(since[v, e], since[v, e - 1])
    return since, read


@entry
def run_prices(price, run_price, program, graph):
    """float64 [ops, K + 2]: the price of recomputing each op in each stage, the price of having its inputs there included.

    An input is live when the stage begins, or recomputed in it. Where an input does not wait for its own sake, `share` of
    its price is charged to each op that reads it.
    """
    weights, made, share = program.weights, program.made, program.share
    since, read = program.since, program.read
    size, producer = graph.bytes, graph.producer
    in_ptr, in_ids = graph.in_ptr, graph.in_ids
    workspace, recompute = graph.workspace, graph.recompute
    n, last = since.shape[1] - 2, since.shape[1] - 1
    prices = np.full((len(workspace), n + 1), np.inf)
    for i in range(len(workspace)):
        if not recompute[i]:
            continue
        prices[i] = run_price * weights[i]
        for j in range(in_ptr[i], in_ptr[i + 1]):
            u = in_ids[j]
            p = producer[u]
            if p < 0 or size[u] == 0:
                continue
            for t in range(2, n + 1):
                if not (0 < since[u, t] < since[u, last]) and not read[u, t - 1]:
                    prices[i, t] += share[u] * min(price[t - 1] * size[u], prices[p, t] * size[u] / made[p])
    return prices


@entry
def cheapest(price, run_price, prices, program, graph):
    """(least sum of prices, cost of recomputations).

    price[k]: of a byte live just before the first run of op k of the path. run_price: of a unit of cost. prices: see
    `run_prices`; the outputs of one op share the price of its run by their sizes.

    Let F(e) be the least price, up to stage e, of a value that is present in stage e and has met its needs before. The
    value was live a stage before; or it is recomputed, and was present before that at since[e] or later; or it was never
    needed before e, and is made for the first time.
    """
    weights, made, share = program.weights, program.made, program.share
    since, read = program.since, program.read
    size, producer = graph.bytes, graph.producer
    in_ptr, in_ids = graph.in_ptr, graph.in_ids
    workspace = graph.workspace
    stages = since.shape[1] - 2
    total, spent = 0.0, 0.0
    least = np.zeros(stages + 1)
    back = np.zeros(stages + 1, np.int64)
    again = np.zeros((len(workspace), stages + 1))
    for v in range(len(size)):
        end = since[v, stages + 1]
        if size[v] == 0 or end == 0 or since[v, end] == 0:
            continue
        p = producer[v]
        part = size[v] / made[p]
        at = end
        for e in range(1, stages + 1):
            first = since[v, e]
            if first == end:
                break
            back[e] = 0
            least[e] = 0.0
            if first:
                stay = least[e - 1] + (0.0 if read[v, e - 1] else price[e - 1] * size[v])
                best = first
                for j in range(first + 1, e):
                    if least[j] < least[best]:
                        best = j
                anew = least[best] + prices[p, e] * part
                back[e] = -1 if stay <= anew else best
                least[e] = min(stay, anew)
            if e > end and least[e] < least[at]:
                at = e
        total += least[at]
        while back[at]:
            if back[at] > 0:
                again[p, at] += part
                at = back[at]
            else:
                at -= 1
    for i in range(len(workspace) - 1, -1, -1):
        for t in range(2, stages + 1):
            if again[i, t] == 0:
                continue
            spent += again[i, t] * weights[i]
            for j in range(in_ptr[i], in_ptr[i + 1]):
                u = in_ids[j]
                p = producer[u]
                if p < 0 or size[u] == 0 or 0 < since[u, t] < since[u, stages + 1] or read[u, t - 1]:
                    continue
                if price[t - 1] * size[u] > prices[p, t] * size[u] / made[p]:
                    again[p, t] += share[u] * again[i, t] * size[u] / made[p]
    return total, spent
