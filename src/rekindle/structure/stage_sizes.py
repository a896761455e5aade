"""The bytes that a stage of a chain takes when it runs alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernels import blocks, liveness, modes
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
        values, wiring = blocks.localise(ops, a, self.place)
        ptr, ids = blocks.rows(wiring, len(ops))
        size, kept, role = self.lives.size[values], self.lives.kept[values], self.lives.roles(values, stage)
        at = np.flatnonzero(ops == a.boundary)
        local = Arrays(
            size, a.producer[values], ptr[0], ids[0], ptr[1], ids[1], ptr[2], ids[2], a.workspace[ops], a.recompute[ops],
            np.zeros(len(values), np.bool_), int(at[0]) if len(at) else -1,
        )  # fmt: skip
        shared = self.shared[values]

        count, ends = len(forward), int(size[role.ending].sum())
        program = np.arange(count, len(ops))
        wanted = role.left.copy()
        for j in range(ptr[0, count], ptr[0, len(ops)]):
            wanted[ids[0, j]] = True
        again = np.array([i for i, o in enumerate(forward) if o not in self.once], np.int64)
        asked = local._replace(producer=np.where(kept, -1, local.producer), recompute=np.ones(len(ops), np.bool_))

        def making(values: np.ndarray) -> np.ndarray:
            """The forward runs that make `values`."""
            return liveness.prune(again, asked._replace(keep=values & ~kept))

        def peak(runs: np.ndarray, counted: np.ndarray, left: np.ndarray) -> int:
            """Most bytes of the values `counted` during the runs, where the values `left` must be there after them."""
            here = np.where(counted, size, 0)
            scratch = np.empty(len(here), np.bool_)
            top, _ = modes.peak(runs, len(runs), np.inf, scratch, local._replace(bytes=here, keep=left), shared)
            return max(int(top), int(here[left].sum()))

        own, stays = role.own, role.own & role.read
        skip, save, alone = (making(values) for values in (role.passed_on, role.passed_on | stays, wanted))
        idle = int(self.lives.idle[stage]) - int(size[role.passing].sum())
        waits = int(self.lives.waiting[stage]) - int(size[role.later & role.left].sum())
        there = own | role.ending | role.behind
        sizes = [
            int(size[stays].sum()),
            int(size[role.saved].sum()),
            peak(skip, own, role.passed_on),
            peak(save, own | role.unread, role.passed_on | stays | role.passing) + idle,
            peak(np.concatenate([alone, program]), there | role.unread, role.left) + waits - ends,
            peak(program, there, role.left) + waits - ends,
        ]
        return Stage(tuple(ops[skip].tolist()), tuple(ops[save].tolist()), tuple(ops[alone].tolist()), sizes)
