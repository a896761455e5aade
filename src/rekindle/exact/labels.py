"""One best-first search over the sets of values that the rest of a step needs."""

from __future__ import annotations

import time

import numpy as np

from ..kernels import needed as kernel
from ..kernels import watch
from .needed import Needed
from .watches import WatchTable

WATCHED_OPS = 8  # ops whose first runs bound the rest of a schedule; a guess
CHUNK_SETS = 20_000  # labels expanded between two looks at the clock: a fifth of a second
FIRST_LABELS = 1 << 14  # labels that there is room for at first; room is doubled as needed


class LabelSearch:
    """One best-first search: its labels, heap and hash table, and the ops whose first runs bound it."""

    table: kernel.Table

    def __init__(self, model: Needed, floor: int, cap: int | None, slack: float):
        self.by_cost = cap is not None
        self.cap, self.slack, self.floor = cap or 0, slack, floor
        cost_free = not self.by_cost and slack == np.inf
        self.model = model.arrays._replace(cost=np.zeros(len(model.ops))) if cost_free else model.arrays
        self.start = model.start
        self.held = model.held(model.start)
        every = WatchTable(model)
        self.room = every.room()
        self.watches = self._pick(every)
        self.state = np.zeros(3, np.int64)
        self._grow(FIRST_LABELS)
        self._enter()

    def _pick(self, every: WatchTable) -> watch.Watches:
        """The ops with the highest bounds at the start: with the whole slack, with half of it and with none."""
        if not self.by_cost and self.slack == np.inf:
            return every.of([])
        slacks = [self.slack] if self.by_cost else [self.slack, self.slack / 2, 0.0]
        chosen: list[int] = []
        for slack in slacks:
            score = [self._watch(every.of([k]), slack) for k in range(len(every.rows))]
            best = sorted(range(len(score)), key=lambda k: (-score[k], k))
            chosen += [k for k in best if k not in chosen][: max(2, WATCHED_OPS // len(slacks))]
        return every.of(chosen)

    def _watch(self, watches: watch.Watches, slack: float) -> float:
        low, high = self.start
        return float(watch.watch(low, high, watches, self.cap, slack, self.by_cost, self.room))

    def _enter(self) -> None:
        bound = self._watch(self.watches, self.slack)
        t = self.table
        t.low[0], t.high[0] = self.start
        t.held[0], t.parent[0], t.last[0] = self.held, -1, -1
        t.key[0] = bound if self.by_cost else max(bound, self.floor)
        if self.by_cost and bound > self.slack:
            return
        kernel.push(t.heap, 0, t.key, 0)
        self.state[:] = 1, 1, 0

    def _grow(self, capacity: int) -> None:
        n = int(self.state[kernel.COUNT])
        types = (np.uint64, np.uint64, np.float64, np.float64, np.int64, np.int32, np.int16, np.int16, np.int32)
        flat = [np.zeros(capacity + 1, t) for t in types]
        slots = 2 * capacity
        hashed = [np.full(slots, -1, np.int32), np.full(slots, np.inf), np.full(slots, -1, np.int16)]
        table = kernel.Table(*flat, *hashed)
        if n:
            for new, old in zip(flat, self.table[: len(flat)], strict=True):
                new[: len(old)] = old
            kernel.rehash(table.low, table.high, *self.table[len(flat) :], *hashed)
        self.table = table

    def run(self, nodes: int, deadline: float | None) -> tuple[int, float, list[int] | None]:
        """(status of `kernels.needed.search`, bound on the goal's figure, runs of the way to the goal or None)."""
        while True:
            chunk = min(CHUNK_SETS, nodes - int(self.state[kernel.EXPANDED]))
            status, label = kernel.search(
                chunk, self.by_cost, self.cap, self.slack, self.state, self.table, self.model, self.watches, self.room
            )
            t = self.table
            lowest = float(t.key[t.heap[0]]) if self.state[kernel.OPEN] else np.inf
            if status == kernel.GOAL:
                return status, lowest, self._way(label)
            if status == kernel.FULL:
                self._grow(2 * (len(t.low) - 1))
            elif status == kernel.EMPTY:
                return status, np.inf, None
            elif self.state[kernel.EXPANDED] >= nodes or deadline is not None and time.monotonic() > deadline:
                return status, lowest, None

    def _way(self, label: int) -> list[int]:
        """The ops from a label back to the start, which is the order in which they run."""
        runs = []
        while self.table.parent[label] >= 0:
            runs.append(int(self.table.op[label]))
            label = int(self.table.parent[label])
        return runs
