"""Copies to the host put into a schedule: which values leave in which gaps, and when they go and come back."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..kernels import copies
from ..kernels.arrays import RUN
from ..model.arena import host_offsets
from ..model.graph import Graph
from ..model.schedule import Schedule

LEAST_SHARE = 1 / 1000  # of the peak: smaller values stay, as each copy costs the host's time. A guess
TRIES = 4  # placements of one choice of gaps: those whose copies come too late for their gap are left out of the next


class Copying:
    """One schedule without copies, into which copies are to be put. Problem: keep a limit at the least wait.

    Gaps between two uses of a value are taken in several orders (those that begin first, those that last longest, the largest
    values, …), each while some run within it still holds too much. In forward and backward, values that are made first are
    used last, so taking gaps as they begin keeps the link busy and hides most. `kernels.copies.place` puts the copies of the
    chosen gaps where nothing waits for them, as far as memory allows it. Optimality: none claimed.

    O(runs of all gaps) per order.

    graph : with a link. memory : int64 [runs], bytes during each run, as the limit counts them.
    leaving : bool [values]; values that a solver has chosen, whose gaps are taken before all others; None: it has chosen none.
    """

    def __init__(self, graph: Graph, schedule: Schedule, memory: np.ndarray, leaving: np.ndarray | None = None):
        self.graph, self.schedule, self.memory, self.leaving = graph, schedule, memory, leaving
        self.seconds = graph.weights("seconds")

    @cached_property
    def gaps(self) -> copies.Gaps:
        """The gaps of values that may leave: not those that the caller may hold."""
        size = self.graph.arrays.bytes
        large = size >= max(1.0, LEAST_SHARE * float(self.memory.max(initial=0)))
        may_leave = large & ~self.graph.shared & (self.graph.arrays.producer >= 0)
        rows = copies.gaps(self.schedule.array, may_leave, self.graph.arrays)
        rows = rows[np.argsort(rows[:, 1], kind="stable")]
        by_next = np.argsort(rows[:, 2], kind="stable").astype(np.int64)
        value, last, end = map(np.ascontiguousarray, rows.T)
        return copies.Gaps(value, last, end, by_next)

    @cached_property
    def orders(self) -> list[np.ndarray]:
        """Orders in which gaps are taken, int64 [gaps] each."""
        gaps, rows = self.gaps, self.schedule.array
        if self.leaving is not None:
            return [np.argsort(~self.leaving[gaps.value], kind="stable").astype(np.int64)]
        size = self.graph.arrays.bytes[gaps.value]
        begins = np.concatenate([[0.0], np.cumsum(self.seconds[rows[rows[:, 0] == RUN, 1]])])
        lasts = begins[gaps.next] - begins[gaps.last + 1]
        keys = (gaps.last, -lasts, -size, -size * lasts, -gaps.next)
        return [np.argsort(key, kind="stable").astype(np.int64) for key in keys]

    @cached_property
    def least_room(self) -> int:
        """Bytes below which no choice of gaps leads, however long the step waits."""
        change = np.zeros(len(self.memory) + 1, np.int64)
        size = self.graph.arrays.bytes[self.gaps.value]
        np.add.at(change, self.gaps.last + 1, size)
        np.add.at(change, self.gaps.next, -size)
        return int((self.memory - change.cumsum()[:-1]).max(initial=0))

    def _fits(self, rows: np.ndarray, host_bytes: float) -> bool:
        """Whether one block of the host holds the copies."""
        made = Schedule.from_array(rows, self.graph.hash, self.schedule.solver)
        return np.isinf(host_bytes) or host_offsets(self.graph, made)[1] <= host_bytes

    def within(self, room: int, host_bytes: float, most_s: float = np.inf) -> Schedule | None:
        """The schedule with copies whose runs hold at most `room` bytes, of the least seconds that is found; None: none is.

        host_bytes : that the host may hold. most_s : longer steps do not count.
        """
        graph, best = self.graph, None
        assert graph.link is not None
        if room < self.least_room:
            return None
        placing = (self.memory, room, self.seconds, graph.link.rates, graph.arrays)
        for order in self.orders:
            chosen, enough = copies.choose(order, self.gaps, self.memory, room, host_bytes, graph.arrays)
            for _ in range(TRIES if enough else 0):
                rows, seconds, left = copies.place(self.schedule.array, self.gaps, chosen, *placing)
                if seconds <= most_s and (left == chosen).all() and self._fits(rows, host_bytes):
                    best, most_s = rows, seconds
                if (left == chosen).all() or np.isinf(seconds):
                    break
                chosen = left
        return None if best is None else Schedule.from_array(best, graph.hash, self.schedule.solver)
