"""A memory plan: a fixed offset in one block for every storage that a schedule makes.

Storages that are never live at the same time share addresses, as in the memory sharing of Chen, Xu, Zhang, Guestrin,
Training Deep Nets with Sublinear Memory Cost, 2016, arXiv:1604.06174, here for lives of unequal size.

Problem: dynamic storage allocation; each life has its first and last step and its bytes. Least bytes of the block is
NP-hard. The peak of live bytes is a lower bound.

Method: lives are placed one by one, the largest first, or those first that take most bytes times steps, or most bytes
times the root of their steps, each at the lowest offset where it fits. Then the lives that stick out above the peak are
moved towards the front of the order and all are placed anew, a number of times; the best result counts.

Beyond `LIVES_MOST` lives they are placed once, in the order in which they begin.

Optimality: none claimed; `arena_bytes` equals the peak where it is optimal and known to be. O(lives^2) per try.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np

from ..kernels import arena as kernel
from .graph import Graph
from .schedule import Fetch, Offload, Run, Schedule

ALIGNMENT = 512  # what PyTorch's allocators round to
LIVES_MOST = 20_000  # whose pairs are looked at: about two seconds
GAPS_MOST = 1_000
WORK = 2.5e8  # pairs of lives looked at over all tries: about half a second


@dataclass(frozen=True)
class Arena:
    """The offset of every storage that a schedule makes; storages held during the whole step are not among them.

    first, last : int64 [lives]; the steps in which a life begins and ends, both included.
    bytes : int64 [lives]; its size, before alignment.
    value : int64 [lives]; the value that begins the life, -1: the workspace of the op that runs there.
    offsets : int64 [lives].
    arena_bytes : size of the block; at least the peak of live bytes without the resident ones.
    sum_bytes : what all lives take where none shares with another.
    """

    first: np.ndarray
    last: np.ndarray
    bytes: np.ndarray
    value: np.ndarray
    offsets: np.ndarray
    arena_bytes: int
    sum_bytes: int


def plan_offsets(graph: Graph, schedule: Schedule, alignment: int = ALIGNMENT) -> Arena:
    """Offsets for all storages of a valid schedule. A life begins with each production and with each run's workspace; an
    op that writes over an input goes on with the input's life.

    alignment : every offset and size is a multiple of it.
    """
    first, last, size, value = (np.ascontiguousarray(c) for c in kernel.lives(schedule.array, graph.arrays).T)
    room = -(-size // alignment) * alignment
    offsets = np.zeros(len(size), np.int64)
    some = np.flatnonzero(room)
    if len(some):
        offsets[some] = _place(first[some], last[some], room[some])
    top = int((offsets + room).max(initial=0))
    return Arena(first, last, size, value, offsets, top, int(room.sum()))


def host_offsets(graph: Graph, schedule: Schedule) -> tuple[list[int], int]:
    """(offset of the copy that each `Offload` of a valid schedule makes in one block of host memory, bytes of that block)."""
    if not schedule.moves:
        return [], 0
    begun: dict[int, int] = {}  # value -> number of its life
    coming: set[int] = set()
    lives: list[list[int]] = []
    for s, step in enumerate(schedule.steps):
        if isinstance(step, Offload):
            begun[step.value] = len(lives)
            lives.append([s, len(schedule.steps), graph.values[step.value].bytes])
        elif isinstance(step, Fetch):
            coming.add(step.value)
        else:
            needed = coming & (set(graph.ops[step.op].inputs) if isinstance(step, Run) else {step.value})
            coming -= needed
            for v in needed:
                lives[begun.pop(v)][1] = s
    first, last, size = (np.ascontiguousarray(c) for c in np.array(lives, np.int64).reshape(-1, 3).T)
    offsets = _place(first, last, size)
    return offsets.tolist(), int((offsets + size).max(initial=0))


def _place(first: np.ndarray, last: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The best offsets of several orders."""
    if len(size) > LIVES_MOST:
        return _in_turn(first, last, size)
    floor = live_peak(first, last, size)
    steps = (last - first + 1).astype(np.float64)
    best, least = np.zeros(len(size), np.int64), 2**62
    tries = int(np.clip(WORK / len(size) ** 2, 4, 400))
    keys = (-size, -size * np.sqrt(steps), -size * steps, -steps)
    starts = [np.lexsort((first, -steps, key)) for key in keys]
    for start in starts[: max(1, tries // 4)]:
        order = start.astype(np.int64)
        for _ in range(tries // len(starts)):
            offsets = np.zeros(len(size), np.int64)
            top = int(kernel.place(order, first, last, size, offsets))
            if top < least:
                best, least = offsets, top
            if least <= floor:
                return best
            order = _sooner(order, (offsets + size > floor)[order])
    return best


def _in_turn(first: np.ndarray, last: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Offsets of lives in the order in which they begin, each in the lowest gap of the first `GAPS_MOST` where it fits."""
    offsets, gaps = [0] * len(size), [(0, 2**62)]  # (begin, end) by address; the last one is what lies above the block
    begins, ends, bytes_of = first.tolist(), last.tolist(), size.tolist()
    ended = iter(np.argsort(last, kind="stable").tolist())
    j = next(ended)
    for i in np.argsort(first, kind="stable").tolist():
        while ends[j] < begins[i]:
            a, b = offsets[j], offsets[j] + bytes_of[j]
            q = bisect.bisect(gaps, (a, b))
            if gaps[q][0] == b:
                b = gaps.pop(q)[1]
            if q and gaps[q - 1][1] == a:
                q -= 1
                a = gaps.pop(q)[0]
            gaps.insert(q, (a, b))
            j = next(ended)
        fits = (q for q, (a, b) in enumerate(gaps[:GAPS_MOST]) if b - a >= bytes_of[i])
        q = next(fits, len(gaps) - 1)
        offsets[i], b = gaps[q]
        gaps[q : q + 1] = [(offsets[i] + bytes_of[i], b)] if offsets[i] + bytes_of[i] < b else []
    return np.array(offsets, np.int64)


def _sooner(order: np.ndarray, which: np.ndarray) -> np.ndarray:
    """The order with the marked places moved towards the front, to half their distance."""
    rank = np.arange(len(order), dtype=np.float64)
    rank[which] = rank[which] / 2 - 0.5
    return order[np.argsort(rank, kind="stable")]


def live_peak(first: np.ndarray, last: np.ndarray, size: np.ndarray) -> int:
    """Most bytes of lives that exist in one step."""
    change = np.zeros(int(last.max()) + 2, np.int64)
    np.add.at(change, first, size)
    np.add.at(change, last + 1, -size)
    return int(np.cumsum(change).max())
