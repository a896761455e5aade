"""Best-first search over needed sets (see exact/needed.py), and the bound that guides it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiled import entry, inner
from .watch import watch

FULL, PAUSED, GOAL, EMPTY = 0, 1, 2, 3  # why `search` came back
AHEAD = 64  # sets looked at to see whether first runs settle
COUNT, OPEN, EXPANDED = 0, 1, 2  # in `state`: labels made, labels in the heap, labels expanded


class Model(NamedTuple):
    """The fields of `exact.needed.Needed` as flat arrays; its docstring explains them."""

    size: np.ndarray
    cost: np.ndarray
    again: np.ndarray
    reads: np.ndarray
    makes: np.ndarray
    heavy: np.ndarray
    below: np.ndarray
    other: np.ndarray
    first: np.ndarray
    made_by: np.ndarray
    in_ptr: np.ndarray
    in_ids: np.ndarray
    out_ptr: np.ndarray
    out_ids: np.ndarray
    over_ptr: np.ndarray
    over_ids: np.ndarray


class Table(NamedTuple):
    """Labels (a needed set and how it was reached), a heap of those to expand and a hash table of sets; flat arrays.

    key : a bound on the goal's figure by this label. extra : cost of the runs again so far. op, parent : the way here.
    last : the op, if the last undone was a run again, else -1.
    best : per slot a label of that set. done, done_last : least extra with which it was expanded, and `last` there.
    """

    low: np.ndarray
    high: np.ndarray
    key: np.ndarray
    extra: np.ndarray
    held: np.ndarray
    parent: np.ndarray
    op: np.ndarray
    last: np.ndarray
    heap: np.ndarray
    best: np.ndarray
    done: np.ndarray
    done_last: np.ndarray


@inner
def _slot(best, low, high, lows, highs):
    """The place of a set in the hash table: where it is, or where it belongs."""
    mask = np.uint64(len(best) - 1)
    h = (low * np.uint64(0x9E3779B97F4A7C15)) ^ (high * np.uint64(0xC2B2AE3D27D4EB4F))
    h ^= h >> np.uint64(29)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(32)
    i = h & mask
    while best[i] >= 0 and (lows[best[i]] != low or highs[best[i]] != high):
        i = (i + np.uint64(1)) & mask
    return i


@entry
def rehash(low, high, old_best, old_done, old_last, best, done, done_last):
    """Moves the hash table to a larger one."""
    for i in range(len(old_best)):
        if old_best[i] >= 0:
            j = _slot(best, low[old_best[i]], high[old_best[i]], low, high)
            best[j] = old_best[i]
            done[j] = old_done[i]
            done_last[j] = old_last[i]


@inner
def _before(key, a, b):
    """Whether label a is expanded before label b: the lower key first; of equal keys the younger label."""
    return key[a] < key[b] or (key[a] == key[b] and a > b)


@entry
def push(heap, size, key, label):
    """Enters a label."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if not _before(key, label, heap[up]):
            break
        heap[i] = heap[up]
        i = up
    heap[i] = label


@inner
def _pop(heap, size, key):
    top = heap[0]
    label = heap[size - 1]
    size -= 1
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and _before(key, heap[child + 1], heap[child]):
            child += 1
        if not _before(key, heap[child], label):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = label
    return top


@inner
def _undo(q, low, high, held, model):
    """(memory while q runs for the needed set (low, high), size of the set before that run)."""
    size, first, other = model.size, model.first, model.other
    one = np.uint64(1)
    after = held
    during = other[q]
    for j in range(model.out_ptr[q], model.out_ptr[q + 1]):
        v = model.out_ids[j]
        during += size[v]
        if ((high >> np.uint64(v - 64) if v >= 64 else low >> np.uint64(v)) & one) != 0:
            after -= size[v]
    for j in range(model.in_ptr[q], model.in_ptr[q + 1]):
        v = model.in_ids[j]
        if ((high >> np.uint64(v - 64) if v >= 64 else low >> np.uint64(v)) & one) == 0:
            after += size[v]
    for j in range(model.over_ptr[q], model.over_ptr[q + 1]):
        v = model.over_ids[j]
        if ((high >> np.uint64(v - 64) if v >= 64 else low >> np.uint64(v)) & one) == 0:
            during -= first[q]
            break
    return during + after, after


@inner
def _commutes(q, o, low, high, held, room, model):
    """Whether op o can be undone before op q as well as after it, from the set (low, high); q is recomputed."""
    makes, reads, heavy = model.makes, model.reads, model.heavy
    if (low & makes[o, 0]) == 0 and (high & makes[o, 1]) == 0:
        return False
    if (makes[o, 0] & reads[q, 0]) != 0 or (makes[o, 1] & reads[q, 1]) != 0:
        return False
    if (makes[q, 0] & reads[o, 0]) != 0 or (makes[q, 1] & reads[o, 1]) != 0:
        return False
    during, after = _undo(o, low, high, held, model)
    if during > room:
        return False
    wanted = (low & ~makes[o, 0] & model.below[o, 0]) != 0 or (high & ~makes[o, 1] & model.below[o, 1]) != 0
    gone = heavy if wanted else makes
    during, after = _undo(q, (low & ~gone[o, 0]) | reads[o, 0], (high & ~gone[o, 1]) | reads[o, 1], after, model)
    return during <= room


@inner
def _settles(q, low, high, held, room, model, lows, highs, helds, fits):
    """Whether a few first runs, the run of q among them, bring the set back to `held` bytes or less, with no run above `room`.

    It tries the smallest number of runs that does, each of an op that makes a value that the runs before it need. Fewer
    runs leave the set larger, whichever they are, so nothing is lost by doing all of them here.
    """
    during, after = _undo(q, low, high, held, model)
    lows[0] = (low & ~model.makes[q, 0]) | model.reads[q, 0]
    highs[0] = (high & ~model.makes[q, 1]) | model.reads[q, 1]
    helds[0], fits[0] = after, True
    begin, end = 0, 1
    while begin < end:
        there, reached = end, False
        for i in range(begin, end):
            for word in range(2):
                new = lows[i] & ~low if word == 0 else highs[i] & ~high
                bit = 64 * word
                while new != 0:
                    while new & np.uint64(0xFF) == 0:
                        new >>= np.uint64(8)
                        bit += 8
                    while new & np.uint64(1) == 0:
                        new >>= np.uint64(1)
                        bit += 1
                    p = model.made_by[bit]
                    new >>= np.uint64(1)
                    bit += 1
                    left_low, left_high = lows[i] & ~model.makes[p, 0], highs[i] & ~model.makes[p, 1]
                    if (left_low & model.below[p, 0]) != 0 or (left_high & model.below[p, 1]) != 0:
                        continue
                    during, after = _undo(p, lows[i], highs[i], helds[i], model)
                    fit = fits[i] and during <= room
                    if after <= held:
                        if fit:
                            return True
                        reached = True
                    to_low, to_high = left_low | model.reads[p, 0], left_high | model.reads[p, 1]
                    j = end
                    while j < there and (lows[j] != to_low or highs[j] != to_high):
                        j += 1
                    if j == there:
                        if there == len(lows):
                            return False
                        lows[j], highs[j], helds[j], fits[j] = to_low, to_high, after, fit
                        there += 1
                    else:
                        fits[j] = fits[j] or fit
        if reached:
            return False
        begin, end = end, there
    return False


@entry
def search(chunk, by_cost, cap, cutoff, state, table, model, watches, work):
    """(FULL, PAUSED, GOAL or EMPTY; label): expands up to `chunk` labels, the one with the lowest key first.

    by_cost: key bounds the extra cost, and no run may hold more than `cap`; else key bounds the peak. No more extra
    cost than `cutoff` in either case. The lowest open key is a bound on what is left whenever this comes back.

    Three rules save most of the work. First runs before which no more is held than after them are undone as soon as
    possible (see `_settles`). So are recomputations that cost nothing, of an op whose inputs are needed anyway. All other
    recomputations are undone as late as possible: right after one, the search undoes only runs that could not have come
    before it. (Of two recomputations that could change places, the op with the lower number comes first.)
    """
    makes, heavy, reads, below, cost, again = (
        model.makes, model.heavy, model.reads, model.below, model.cost, model.again,
    )  # fmt: skip
    lows, highs, keys, extras, helds, parents, by_op, last, heap, best, done, done_last = table
    n = len(cost)
    child_op = np.empty(n, np.int64)
    child_first = np.empty(n, np.bool_)
    child_last = np.empty(n, np.int64)
    child_mem = np.empty(n, np.int64)
    child_held = np.empty(n, np.int64)
    child_extra = np.empty(n)
    some = np.empty(AHEAD, np.uint64), np.empty(AHEAD, np.uint64), np.empty(AHEAD, np.int64), np.empty(AHEAD, np.bool_)
    for _ in range(chunk):
        if state[OPEN] == 0:
            return EMPTY, -1
        if state[COUNT] + n >= len(lows):
            return FULL, -1
        label = _pop(heap, state[OPEN], keys)
        state[OPEN] -= 1
        low, high, extra, key, held = lows[label], highs[label], extras[label], keys[label], helds[label]
        if low == 0 and high == 0:
            push(heap, state[OPEN], keys, label)  # stays the lowest, for whoever asks
            state[OPEN] += 1
            return GOAL, label
        slot = _slot(best, low, high, lows, highs)
        before = last[label]
        if done[slot] < extra or (done[slot] == extra and (done_last[slot] == -1 or done_last[slot] == before)):
            continue
        if done[slot] == extra:
            before = -1  # the set was met by another way: every op that either way allows may follow
        done[slot] = extra
        done_last[slot] = before
        state[EXPANDED] += 1
        room = cap if by_cost else key
        m = 0
        for q in range(n):
            if (low & makes[q, 0]) == 0 and (high & makes[q, 1]) == 0:
                continue
            left_low, left_high = low & ~makes[q, 0], high & ~makes[q, 1]
            wanted_again = (left_low & below[q, 0]) != 0 or (left_high & below[q, 1]) != 0
            # Values of no bytes stay from the first run on, so a later run must make something that takes memory.
            if wanted_again and (not again[q] or ((low & heavy[q, 0]) == 0 and (high & heavy[q, 1]) == 0)):
                continue
            more = extra + (cost[q] if wanted_again else 0.0)
            if more > cutoff:
                continue
            during, after = _undo(q, low, high, held, model)
            if by_cost and during > cap:
                continue
            inputs_there = (reads[q, 0] & ~low) == 0 and (reads[q, 1] & ~high) == 0
            free = inputs_there if wanted_again and cost[q] == 0.0 else not wanted_again and after <= held
            forced = free and during <= room
            if forced:
                m = 0  # right here is as good as anywhere
            up = parents[label]
            if not (
                before >= 0
                and (not wanted_again or q < before)
                and _commutes(before, q, lows[up], highs[up], helds[up], room, model)
            ):
                child_op[m], child_mem[m], child_held[m], child_extra[m] = q, during, after, more
                child_first[m] = not wanted_again
                child_last[m] = q if wanted_again and not forced else -1
                m += 1
            if forced:
                break
        begin = 0
        for c in range(m):
            grows = child_first[c] and child_held[c] > held and child_mem[c] <= room
            if grows and _settles(child_op[c], low, high, held, room, model, *some):
                begin, m = c, c + 1
                break
        for c in range(begin, m):
            q, more = child_op[c], child_extra[c]
            gone = makes if child_first[c] else heavy
            new_low = (low & ~gone[q, 0]) | reads[q, 0]
            new_high = (high & ~gone[q, 1]) | reads[q, 1]
            new_last = child_last[c]
            new_key = max(key, float(child_mem[c])) if not by_cost else max(key, more)
            slot = _slot(best, new_low, new_high, lows, highs)
            known = best[slot]
            if known >= 0:
                if done[slot] < more or (done[slot] == more and (done_last[slot] == -1 or done_last[slot] == new_last)):
                    continue
                if extras[known] <= more and keys[known] <= new_key and last[known] in (-1, new_last):
                    continue
            bound = watch(new_low, new_high, watches, cap, cutoff - more, by_cost, work)
            if by_cost:
                bound += more
                if bound > cutoff:
                    continue
            new_key = max(new_key, bound)
            if known >= 0 and extras[known] <= more and keys[known] <= new_key and last[known] in (-1, new_last):
                continue
            i = state[COUNT]
            state[COUNT] += 1
            lows[i], highs[i], keys[i], extras[i], helds[i] = new_low, new_high, new_key, more, child_held[c]
            parents[i], by_op[i], last[i] = label, q, new_last
            best[slot] = i
            push(heap, state[OPEN], keys, i)
            state[OPEN] += 1
    return PAUSED, -1
