"""The values that wait while an op runs for the first time, for the bound of the exact search (kernels/watch.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..kernels import watch as kernel
from .needed import WORDS, Needed

WORD = (1 << 64) - 1


class WatchTable:
    """Per op of a model: its own bytes, the values that may wait while it first runs, and the ops that could recompute them.

    `of` gives, for w of the ops chosen:
    own : bytes that the op needs to run. below : uint64 [chosen, WORDS]; values that call for its run.
    ptr : its values are at ptr[w] : ptr[w + 1] of the next three.
    maker, held : the op that makes the value, and its size. calls : uint64 [values, WORDS]; sets with one of those
        values need this one after the run.
    up, through : [chosen, ops]; the op that makes one of the inputs of each op, the one dearest to do without, and the
        size of that input; -1 where all inputs are live anyway or none has a maker.
    again : what running an op again costs; infinite where it may not.
    """

    def __init__(self, model: Needed):
        self.model = model
        self.again = np.where(model.again, model.cost, np.inf)
        self.rows = [self._row(k) for k in range(len(model.ops))]

    def _inputs(self, k: int) -> list[int]:
        m = self.model
        return m.in_ids[m.in_ptr[k] : m.in_ptr[k + 1]].tolist()

    def _row(self, k: int) -> tuple[list[tuple[int, int, int]], np.ndarray, np.ndarray]:
        m = self.model
        live = set(self._inputs(k))
        readers: dict[int, int] = {}
        for c in range(len(m.ops)):
            if m.after[k] >> c & 1 and c != k:
                for v in self._inputs(c):
                    readers[v] = readers.get(v, 0) | _int(m.below[c])
        values = []
        up, through = np.full(len(m.ops), -1), np.zeros(len(m.ops))
        dear = np.zeros(len(m.ops))  # of making again all on the way up from an op
        for p in range(len(m.ops)):
            if p == k or not m.before[k] >> p & 1:
                continue
            ways = [(dear[m.made_by[v]], int(m.size[v]), v) for v in self._inputs(p) if v not in live]
            if ways:
                _, size, v = max(ways)
                up[p], through[p] = m.made_by[v], size
            dear[p] = self.again[p] + (dear[up[p]] if up[p] >= 0 else 0.0)
            for v in m.out_ids[m.out_ptr[p] : m.out_ptr[p + 1]].tolist():
                if v not in live and m.size[v]:
                    values.append((p, v, readers.get(v, 0) | 1 << v))
        return values, up, through

    def of(self, chosen: Sequence[int]) -> kernel.Watches:
        m = self.model
        values = [value for k in chosen for value in self.rows[k][0]]
        ptr = np.zeros(len(chosen) + 1, np.int64)
        np.cumsum([len(self.rows[k][0]) for k in chosen], out=ptr[1:])
        return kernel.Watches(
            np.array([m.own(k) for k in chosen], np.float64),
            m.below[list(chosen)].reshape(-1, WORDS),
            ptr,
            np.array([p for p, _, _ in values], np.int64),
            np.array([(c & WORD, c >> 64) for _, _, c in values], np.uint64).reshape(-1, WORDS),
            np.array([m.size[v] for _, v, _ in values], np.float64),
            np.array([self.rows[k][1] for k in chosen], np.int64).reshape(len(chosen), len(m.ops)),
            np.array([self.rows[k][2] for k in chosen], np.float64).reshape(len(chosen), len(m.ops)),
            self.again,
        )

    def room(self) -> kernel.Room:
        """Arrays to work in."""
        n = len(self.model.ops)
        items = n + len(self.model.size)
        return kernel.Room(
            np.zeros(n), np.zeros(n, np.bool_), np.empty(items), np.empty(items), np.empty(items),
            np.empty(items, np.int64), np.empty(items), np.empty(items), np.empty(items, np.int64),
            np.empty(kernel.SMALL),
        )  # fmt: skip


def _int(mask: np.ndarray) -> int:
    return int(mask[0]) | int(mask[1]) << 64
