"""A bound from the first run of an op: a knapsack over the values that wait meanwhile and the ops that recompute them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiled import entry, inner

SMALL = 257  # a knapsack of fewer units is solved exactly


class Watches(NamedTuple):
    """The ops whose first runs are looked at, as `exact.watches.WatchTable` finds them; its docstring explains the fields."""

    own: np.ndarray
    below: np.ndarray
    ptr: np.ndarray
    maker: np.ndarray
    calls: np.ndarray
    held: np.ndarray
    up: np.ndarray
    through: np.ndarray
    again: np.ndarray


@inner
def _calls(low, high, mask):
    return (low & mask[0]) != 0 or (high & mask[1]) != 0


@inner
def _items(w, low, high, watches, room):
    """The number of knapsack items; their bytes go to room.item_size, and the cost of doing without them to room.item_cost.

    Take an op whose values the set still needs. Either these are live, or the op runs again, and then its inputs are
    live or recomputed too. Follow one input of each op upwards, until an op that was passed before. On this way each
    value that is smaller than all before it makes an item: holding that value in place of the previous one saves the item's
    bytes, and costs the runs from the op up to the value's producer.
    """
    ptr, maker, calls, held, up, through, again = (
        watches.ptr, watches.maker, watches.calls, watches.held, watches.up, watches.through, watches.again,
    )  # fmt: skip
    waiting, seen, item_size, item_cost = room.waiting, room.seen, room.item_size, room.item_cost
    seen[:] = False
    waiting[:] = 0.0
    for j in range(ptr[w], ptr[w + 1]):
        if _calls(low, high, calls[j]):
            waiting[maker[j]] += held[j]
            seen[maker[j]] = True
    m = 0
    for j in range(ptr[w], ptr[w + 1]):
        op = maker[j]
        left = waiting[op]
        if left == 0:
            continue
        waiting[op] = 0
        cost = again[op]
        while left > 0 and cost < np.inf and up[w, op] >= 0 and not seen[up[w, op]]:
            size = through[w, op]
            op = up[w, op]
            seen[op] = True
            if size < left:
                item_size[m], item_cost[m] = left - size, cost
                m += 1
                left, cost = size, 0.0
            cost += again[op]
        if left > 0:
            item_size[m], item_cost[m] = left, cost
            m += 1
    return m


@inner
def _cheapest(most, count, item_size, item_cost, order, cheapest):
    """Fills cheapest[b]: least cost of doing without items of b bytes in all, b < most; cheapest[most]: of `most` or more."""
    cheapest[: most + 1] = np.inf
    cheapest[0] = 0.0
    for k in range(count):
        size, cost = int(item_size[order[k]]), item_cost[order[k]]
        if cost == np.inf:
            break
        for b in range(max(0, most - size), most):
            cheapest[most] = min(cheapest[most], cheapest[b] + cost)
        for b in range(most - 1, size - 1, -1):
            cheapest[b] = min(cheapest[b], cheapest[b - size] + cost)


class Room(NamedTuple):
    """Arrays to work in: per op, per item, and per unit of a knapsack."""

    waiting: np.ndarray
    seen: np.ndarray
    item_size: np.ndarray
    item_cost: np.ndarray
    ratio: np.ndarray
    order: np.ndarray
    best_size: np.ndarray
    best_cost: np.ndarray
    best_order: np.ndarray
    cheapest: np.ndarray


@entry
def watch(low, high, watches, cap, slack, by_cost, room):
    """A bound on the rest of the schedule, for the needed set (low, high), from the first runs of a few ops.

    When op w runs for the first time, each value made before it and read after it that the set still needs is live, or
    is recomputed later (see `_items`). With by_cost the bound is the least cost of recomputing that brings the memory at
    w down to `cap`; without it, the least memory that recomputing for at most `slack` can reach. Either bound is a
    knapsack problem. Its relaxation to fractions is solved for every watched op; then, if the numbers are small, the problem
    itself is solved for the op whose relaxed bound is highest.
    """
    bound = 0.0
    best, best_total = 0, 0.0
    for w in range(len(watches.own)):
        if not _calls(low, high, watches.below[w]):
            continue
        total = watches.own[w]
        for j in range(watches.ptr[w], watches.ptr[w + 1]):
            if _calls(low, high, watches.calls[j]):
                total += watches.held[j]
        if total <= (cap if by_cost else bound):
            continue
        m = _items(w, low, high, watches, room)
        for i in range(m):
            ratio = room.item_cost[i] / room.item_size[i]
            k = i
            while k > 0 and room.ratio[room.order[k - 1]] > ratio:
                room.order[k] = room.order[k - 1]
                k -= 1
            room.order[k] = i
            room.ratio[i] = ratio
        left, left_cost, found = total - cap, slack, 0.0 if by_cost else total
        for i in room.order[:m]:
            size, cost = room.item_size[i], room.item_cost[i]
            if by_cost:
                found += room.ratio[i] * min(left, size)
                left -= size
                if left <= 0:
                    break
            else:
                if cost > left_cost:
                    found -= left_cost / room.ratio[i]
                    break
                left_cost -= cost
                found -= size
        if by_cost and left > 0:
            return np.inf
        found = found * (1 - 1e-12) if by_cost else np.ceil(found * (1 - 1e-12) - 1e-6)
        if found > bound:
            bound, best, best_total = found, m, total
            room.best_size[:m] = room.item_size[:m]
            room.best_cost[:m] = room.item_cost[:m]
            room.best_order[:m] = room.order[:m]
    if bound == 0.0:
        return bound
    most = int(best_total - cap if by_cost else best_total - bound)
    if most >= len(room.cheapest) or most <= 0:
        return bound
    cheapest = room.cheapest
    _cheapest(most, best, room.best_size, room.best_cost, room.best_order, cheapest)
    if by_cost:
        return max(bound, cheapest[most] * (1 - 1e-12))
    while most > 0 and cheapest[most] * (1 - 1e-12) > slack:
        most -= 1
    return max(bound, best_total - most)
