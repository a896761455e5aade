"""The bytes that a stage of a chain takes when it runs alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernels import local_ids, modes
from ..kernels import runs as kernel
from ..kernels.arrays import Arrays
from ..model.graph import Graph
from .lives import Lives

Ops = tuple[int, ...]


class Stage(NamedTuple):
    """The ops that forward of a stage runs, by purpose, and its sizes in bytes; all as in `Chain`."""

    skip: Ops
    save: Ops
    alone: Ops
    sizes: list[int]  # saved, passed_on, skip_peak, save_peak, alone_peak, backward_peak


class StageSizes:
    """Sizes of the stages of a chain: each stage is run over the values that its ops touch, and the bytes that pass by
    meanwhile are added."""

    def __init__(self, graph: Graph, lives: Lives, once: frozenset[int]):
        """once : ops that forward runs only the first time."""
        self.graph, self.lives, self.once = graph, lives, once
        self.shared = graph.shared
        self.place = np.full(len(graph.values), -1, np.int64)

    def of(self, stage: int, forward: Ops, backward: Ops) -> Stage:
        """The sizes of one stage. forward, backward : its ops."""
        ops = np.array([*forward, *backward], np.int64)
        a = self.graph.arrays
        values, wiring = local_ids.localise(ops, a, self.place)
        ptr, ids = local_ids.rows(wiring, len(ops))
        made, last, group, used, size, kept = self.lives.of(values)
        at = np.flatnonzero(ops == a.boundary)
        local = Arrays(
            size, a.producer[values], ptr[0], ids[0], ptr[1], ids[1], ptr[2], ids[2], a.workspace[ops], a.recompute[ops],
            np.zeros(len(values), np.bool_), int(at[0]) if len(at) else -1,
        )  # fmt: skip
        shared = self.shared[values]

        read = used < self.lives.n
        own, own_gradient = made == stage, group == stage
        passed_on = own & (last > stage)
        entering = (made < stage) & (made >= 0) & (last >= stage)
        unread, ending = entering & ~read, entering & (used == stage)
        later = (made > stage) | (group > stage)
        waiting = later & (used <= stage)  # for the backward of this stage or earlier ones
        left = (own | own_gradient | later) & (used < stage)
        behind, ends = waiting | own_gradient, int(size[ending].sum())
        count = len(forward)
        program = np.arange(count, len(ops))
        wanted = left.copy()
        for j in range(ptr[0, count], ptr[0, len(ops)]):
            wanted[ids[0, j]] = True
        again = np.array([i for i, o in enumerate(forward) if o not in self.once], np.int64)
        asked = local._replace(producer=np.where(kept, -1, local.producer), recompute=np.ones(len(ops), np.bool_))

        def making(values: np.ndarray) -> np.ndarray:
            """The forward runs that make `values`."""
            return kernel.prune(again, asked._replace(keep=values & ~kept))

        def peak(runs: np.ndarray, counted: np.ndarray, left: np.ndarray) -> int:
            """Most bytes of the values `counted` during the runs, where the values `left` must be there after them."""
            here = np.where(counted, size, 0)
            scratch = np.empty(len(here), np.bool_)
            top, _ = modes.peak(runs, len(runs), np.inf, scratch, local._replace(bytes=here, keep=left), shared)
            return max(int(top), int(here[left].sum()))

        skip, save, alone = (making(values) for values in (passed_on, passed_on | own & read, wanted))
        idle = int(self.lives.idle[stage]) - int(size[unread & (last > stage)].sum())
        waits = int(self.lives.waiting[stage]) - int(size[later & left].sum())
        sizes = [
            int(size[own & read].sum()),
            int(size[passed_on & read].sum()),
            peak(skip, own, passed_on),
            peak(save, own | unread, passed_on | own & read | unread & (last > stage)) + idle,
            peak(np.concatenate([alone, program]), own | unread | ending | behind, left) + waits - ends,
            peak(program, own | ending | behind, left) + waits - ends,
        ]
        return Stage(tuple(ops[skip].tolist()), tuple(ops[save].tolist()), tuple(ops[alone].tolist()), sizes)
