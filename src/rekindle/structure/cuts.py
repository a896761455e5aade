"""Places at which a forward can be cut: where few bytes pass, or at its splitting vertices."""

from __future__ import annotations

import numpy as np

from ..model.graph import Graph
from .division import splitting_vertices
from .forward import Forward, results

# Sizes of blocks and stages. An op of weight is one whose outputs are not negligible. All are guesses.
LARGEST_BLOCK = 3  # size of the largest block, in sizes of the smallest
MOST_BLOCKS = 100  # about; where the smallest size would make more, blocks are larger
NEGLIGIBLE_SHARE = 0.01  # of the bytes that forward makes: the smallest outputs that together hold at most that
STAGE_OPS = 6  # least ops of weight in a stage, where splitting vertices do not make the stages
MOST_STAGES = 1000  # about how many such stages there are at most


def series(graph: Graph, forward: Forward) -> list[int]:
    """Vertices at which the forward is cut into a chain of stages: the splitting vertices. Where more than half of the
    forward lies between two of them (values that all layers read, the states of an unrolled network), also the places
    between these two where fewest bytes pass."""
    splits = splitting_vertices(forward.dag)
    _, weight = _passing(graph, forward)
    lengths = np.diff(weight[splits])
    k = int(lengths.argmax())
    if lengths[k] <= max(weight[-1] / 2, 2 * LARGEST_BLOCK * STAGE_OPS):
        return splits
    inside = [v for v in cuts(graph, forward, STAGE_OPS, MOST_STAGES) if splits[k] < v < splits[k + 1]]
    return sorted([*splits, *inside])


def cuts(graph: Graph, forward: Forward, smallest: int, most: int = MOST_BLOCKS) -> list[int]:
    """Vertices after which the forward is cut, the source and the target among them, such that fewest bytes pass the cuts,
    on an average over the ops of weight.

    smallest : ops of weight in a block; a smaller block spares nothing. A block has at most
        `LARGEST_BLOCK` times as many.
    most : how many of the smallest blocks make up the whole forward at most; where it is more, blocks are larger.
    """
    target = len(forward.ops) - 1
    passing, weight = _passing(graph, forward)
    smallest = max(smallest, int(weight[-1]) // most)
    # Only the best place between two ops of weight; levels[k] is how many such ops lie before places[k].
    order = np.lexsort((-np.arange(target + 1), passing))
    levels, first = np.unique(weight[order], return_index=True)
    places, costs = order[first], passing[order[first]]
    inner = (places > 0) & (places < target) & (levels > 0) & (levels < weight[-1])
    levels = np.concatenate([[0], levels[inner], [weight[-1]]])
    places = np.concatenate([[0], places[inner], [target]])
    costs = np.concatenate([[0.0], costs[inner], [0.0]])
    best, before = np.full(len(levels), np.inf), np.zeros(len(levels), np.int64)
    best[0] = 0.0
    last = len(levels) - 1
    for k in range(1, last + 1):
        low = min(k - 1, int(np.searchsorted(levels, levels[k] - LARGEST_BLOCK * smallest)))
        length = levels[k] - levels[low:k]
        total = best[low:k] + costs[k] * np.maximum(length, smallest) * (1 + 0.01 * length / smallest)
        at = low + int(total.argmin())
        best[k], before[k] = total[at - low], at
    found, k = [], last
    while k:
        found.append(int(places[k]))
        k = int(before[k])
    return [0, *reversed(found)]


def closed(graph: Graph, forward: Forward, smallest: int, largest: int) -> list[int] | None:
    """Vertices after which the forward is cut into closed sets: splitting vertices alone, with at least `smallest` ops of
    weight between two of them where that can be. None if no set has more than `LARGEST_BLOCK` times as many, so
    that `cuts` need not divide any; if a set has more than `largest`; or if there is only one."""
    splits = splitting_vertices(forward.dag)
    _, weight = _passing(graph, forward)
    lengths = np.diff(weight[splits])
    if len(splits) < 3 or not LARGEST_BLOCK * smallest < lengths.max() <= largest:
        return None
    found = [splits[0]]
    since = 0
    for k, length in enumerate(lengths.tolist()):
        apart = length > LARGEST_BLOCK * smallest
        if since and (apart or since >= smallest):
            found.append(splits[k])
            since = 0
        since = max(since, smallest) if apart else since + length
    return [*found, splits[-1]]


def _passing(graph: Graph, forward: Forward) -> tuple[np.ndarray, np.ndarray]:
    """Per vertex the bytes that pass behind it (counted a little higher where backward does not read them), and the number
    of ops of weight up to it."""
    n = len(forward.ops)
    vertex = {o: v for v, o in enumerate(forward.ops) if o >= 0}
    handed_on = set(results(graph))
    passing, made = np.zeros(n + 1), np.zeros(n)
    for o, at in vertex.items():
        for v in graph.ops[o].outputs:
            readers = [vertex[c] for c in graph.consumers[v] if c in vertex]
            last = n if v in handed_on else max(readers, default=at)
            read = any(graph.ops[c].backward or c > forward.ops[-1] >= 0 for c in graph.consumers[v])
            size = graph.arrays.bytes[v] * (1.0 if read else 1.001)
            passing[at] += size
            passing[last] -= size
            made[at] += graph.arrays.bytes[v]
    ranked = np.argsort(made, kind="stable")
    total = np.cumsum(made[ranked])
    weighs = np.zeros(n, np.bool_)
    weighs[ranked[total > NEGLIGIBLE_SHARE * total[-1]]] = True
    return np.cumsum(passing)[:n], np.cumsum(weighs)
