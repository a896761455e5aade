"""The ops of a step assigned to the stages of a chain, and with them the values.

- Every needed op belongs to one stage, forward or backward. A forward op that is no vertex of the forward DAG goes with
  the first stage that reads it (side inputs), else with the last one that it reads from (buffer updates).
- A backward op goes with the earliest stage whose forward it, or an op before it, needs: the stage of an interior value,
  or the stage that reads a value which one stage hands to another. So stages in reverse, each in baseline order, are a
  valid order of backward whatever the graph is.
"""

from __future__ import annotations

from bisect import bisect_left
from copy import copy

import numpy as np

from ..model.graph import Graph
from .archive import making
from .forward import Forward, end_of_forward, results
from .lives import Lives

Stages = tuple[tuple[int, ...], ...]  # op ids of each stage


class Assignment:
    """Which stage each op and value belongs to. For made, last, group, used and size see `Lives`.

    splits : vertices of the forward DAG at which stages end, the source and the target among them.
    n : how many stages; the last one is the turn.
    held : bytes that are live for most of a step whatever the plan is.
    reach : int64 [ops]; the last stage whose input has all the outputs of the op that a step needs.
    kept : bool [values]; values that stay until the backward of their stage whatever the plan is, see `keeping`.
    kept_bytes : int64 [n]; their bytes, by the stage that makes them.
    once : ops that forward runs only the first time, since their outputs are kept.
    """

    def __init__(self, graph: Graph, forward: Forward, splits: list[int]):
        self.graph, self.splits = graph, splits
        self.turn = len(splits) - 1
        self.n = self.turn + 1
        self.end = end_of_forward(graph) or 0
        count = len(graph.values)
        self.made, self.last, self.group = np.full(count, -1), np.full(count, -1), np.full(count, -1)
        self.used = np.full(count, self.n)
        needed = np.flatnonzero(graph.needed).tolist()
        self.stage: dict[int, int] = {}
        self._forward([o for o in needed if o < self.end], forward)
        behind = [o for o in needed if o >= self.end]
        if graph.boundary is not None and graph.needed[graph.boundary]:
            self._enter(graph.boundary, self.turn)
            behind.remove(graph.boundary)
        self._backward(behind)
        self.used[list(graph.keep)] = -1
        self.whole_size = graph.arrays.bytes.copy()
        aside = self._held(forward)
        self.held = int(self.whole_size[aside].sum())
        self.whole_size[aside] = 0
        self.reach = self._reach()
        self._keep(np.zeros(count, np.bool_))

    def keeping(self, values: np.ndarray) -> Assignment:
        """The same where `values` (bool [values]) stay until the backward of their stage. Values are not kept where their
        op must run again for another of its outputs: nothing would be spared."""
        other = copy(self)
        other._keep(values)
        return other

    def _keep(self, values: np.ndarray) -> None:
        a = self.graph.arrays
        wanted = (self.made >= 0) & ((self.last > self.made) | (self.used < self.n))
        kept = values & (self.made >= 0) & (self.made < self.turn) & (self.used < self.n)
        forward = np.array([o for o in sorted(self.stage) if o < self.end], np.int64)
        again = making(self.graph, forward, wanted, kept)
        self.kept = kept & ~np.isin(a.producer, again)
        self.kept_bytes = np.bincount(self.made[self.kept], self.whole_size[self.kept], self.n).astype(np.int64)
        self.size = np.where(self.kept, 0, self.whole_size)
        self.once = frozenset(a.producer[self.kept].tolist())

    def _forward(self, ops: list[int], forward: Forward) -> None:
        vertex = {o: bisect_left(self.splits, v) - 1 for v, o in enumerate(forward.ops) if o >= 0}
        first = dict(vertex)  # the first stage that needs an op
        for o in reversed(ops):
            if o in first:
                for p in self.graph.arrays.producer[list(self.graph.ops[o].inputs)].tolist():
                    if p >= 0 and p not in vertex:
                        first[p] = min(first.get(p, self.turn), first[o])
        here = 0
        for o in ops:
            here = vertex.get(o, here)
            before = [int(self.made[v]) for v in self.graph.ops[o].inputs if self.made[v] >= 0]
            self._enter(o, max([*before, first[o]] if o in first else before, default=here))

    def _enter(self, op: int, stage: int) -> None:
        self.stage[op] = stage
        for v in self.graph.ops[op].inputs:
            self.last[v] = max(self.last[v], stage)
        for v in self.graph.ops[op].outputs:
            self.made[v] = self.last[v] = stage

    def _backward(self, ops: list[int]) -> None:
        free = self.n  # of an op that reads only what the caller holds: bound to no stage
        for o in ops:
            needs = [int(self.last[v] if self.made[v] >= 0 else self.group[v]) for v in self.graph.ops[o].inputs]
            stage = min((s for s in needs if s >= 0), default=free)
            self.stage[o] = stage
            self.group[list(self.graph.ops[o].outputs)] = stage
        for o in reversed(ops):  # free ops run in the stage that reads their outputs first
            outputs = list(self.graph.ops[o].outputs)
            if self.stage[o] == free:
                readers = [self.stage[c] for v in outputs for c in self.graph.consumers[v] if c in self.stage]
                self.stage[o] = max(readers, default=0)
                self.group[outputs] = self.stage[o]
            for v in self.graph.ops[o].inputs:
                self.used[v] = min(self.used[v], self.stage[o])

    def _held(self, forward: Forward) -> np.ndarray:
        handed_on = set(results(self.graph))
        aside = np.zeros(len(self.made), np.bool_)
        aside[[v for v in forward.always if v not in handed_on]] = True
        a = self.graph.arrays
        in_stages = (self.made >= 0) & (self.made < self.turn)
        stays = (self.last > self.made) | (self.used < self.n)
        aside |= in_stages & (a.keep | (stays & ~a.recompute[a.producer]))
        return aside

    def _reach(self) -> np.ndarray:
        reach = np.full(len(self.graph.ops), -1)
        for o in self.stage:
            wanted = [v for v in self.graph.ops[o].outputs if self.used[v] < self.n or self.last[v] >= 0]
            reach[o] = min((int(self.last[v]) for v in wanted), default=-1)
        return reach

    @property
    def sides(self) -> tuple[Stages, Stages]:
        """The forward ops and the backward ops of each stage, in baseline order; the boundary counts as forward."""
        forward: list[list[int]] = [[] for _ in range(self.n)]
        backward: list[list[int]] = [[] for _ in range(self.n)]
        for o in sorted(self.stage):
            behind = o >= self.end and o != self.graph.boundary
            (backward if behind else forward)[self.stage[o]].append(o)
        return tuple(map(tuple, forward)), tuple(map(tuple, backward))

    @property
    def lives(self) -> Lives:
        """The stages that make and read each value."""
        return Lives(self.n, self.made, self.last, self.group, self.used, self.size, self.kept)
