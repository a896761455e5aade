"""Any graph as a chain of stages: what lies between the splitting vertices of its forward DAG (see `cuts.series`).

Forward runs stages 0 to n - 1 in order, backward runs them in reverse. The last stage is the turn: forward is the
boundary op alone (nothing where the graph has none), which reads the results and makes the gradients that come back.

- Every needed op belongs to one stage, forward or backward. A forward op that is no vertex of the DAG goes with the
  first stage that reads it (side inputs), else with the last one that it reads from (buffer updates).
- A backward op goes with the earliest stage whose forward it or an op before it needs: the stage of an interior value,
  and the stage that reads a value where one stage hands it to another. So stages in reverse, each in baseline order,
  are a valid order of backward whatever the graph is.
- The input of a stage is all that passes its beginning, what later stages read included: with concatenations over all
  earlier layers, inputs share values.

Sizes are bytes, found by running each stage in isolation. What is live for most of a step whatever is planned (masks,
the results where the caller keeps them, what must not be made twice) is `held` and counts nowhere else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..kernels import runs as kernel
from ..model.graph import Graph
from ..model.schedule import Schedule
from .cuts import series
from .forward import Forward, end_of_forward, forward_dag, results
from .lives import Lives
from .measure import Measure
from .runs import prune

FORGET, KEEP_INPUT, KEEP_ALL, BACKWARD = 0, 1, 2, 3  # what an operation does; of the first three all run forward
Operation = tuple[int, int]  # what it does, stage
Stages = tuple[tuple[int, ...], ...]


class Times(NamedTuple):
    """float64 [stages]: what it costs to run forward for the output alone (skip), for the output and what backward
    reads (save), or for what backward reads alone, right before it (alone); and to run backward.

    once : float; what runs once in any case and is in none of these.
    """

    skip: np.ndarray
    save: np.ndarray
    alone: np.ndarray
    backward: np.ndarray
    once: float


@dataclass(frozen=True)
class Chain:
    """n stages, the turn included.

    Of the input of a stage, backward reads a part; the rest is gone once forward has passed the stage for the last
    time. A peak is what a stage takes beyond the part that backward reads of its input, beyond `held`, and going
    forward beyond the gradient that waits.

    forward, backward : per stage its ops in baseline order.
    once : ops that forward runs only the first time, for what they make is kept.
    lives : which stages make and read each value.
    skip, save, alone : per stage the forward ops needed for the output alone, for the output and what backward reads,
        and for what backward reads alone.
    reach : int64 [ops]; the last stage whose input has all that the op makes and a step needs of it.
    keeping : int64 [n]; bytes that stay from forward to backward whatever the plan is, see `with_kept`; in nothing else.
    saved : int64 [n]; bytes of what forward of the stage makes and backward reads.
    passed_on : int64 [n]; the part of `saved` that a later stage reads too.
    gradient : int64 [n]; bytes that wait for the backward of stages 0 to l, once those of later ones have run.
    skip_peak : int64 [n]; forward for the output alone.
    save_peak : int64 [n]; forward for the output and what backward reads.
    alone_peak : int64 [n]; forward for what backward reads and backward right after it, the gradient counted.
    backward_peak : int64 [n]; backward after `save`, what is saved and the gradient counted.
    """

    builder: _Builder
    graph: Graph
    forward: Stages
    backward: Stages
    once: frozenset[int]
    skip: Stages
    save: Stages
    alone: Stages
    lives: Lives
    held: int
    reach: np.ndarray
    keeping: np.ndarray
    saved: np.ndarray
    passed_on: np.ndarray
    gradient: np.ndarray
    skip_peak: np.ndarray
    save_peak: np.ndarray
    alone_peak: np.ndarray
    backward_peak: np.ndarray

    def __len__(self) -> int:
        return len(self.forward)

    @property
    def turn(self) -> int:
        """The last stage, where forward becomes backward."""
        return len(self.forward) - 1

    @property
    def input(self) -> np.ndarray:
        """int64 [n]: bytes of the input of each stage."""
        return self.lives.read + self.lives.unread

    @cached_property
    def hold(self) -> np.ndarray:
        """int64 [n, n]; hold[i, j], i < j: what a peak of stage j does not count of the inputs of i and j, where both
        are held, and a peak of stage i does. (What both share and backward does not read, as only concatenations do,
        is taken to end with j.)"""
        return self.lives.hold()

    @cached_property
    def passing(self) -> np.ndarray:
        """int64 [n, n]; passing[i, j], i <= j: peak while forward passes j for its output alone and the input of i is
        held; what is beyond the input of i."""
        return self.lives.unread[:, None] + self.lives.entering() + self.skip_peak

    def times(self, weights: np.ndarray) -> Times:
        """What the parts of each stage cost, where weights [ops] is what a run of each op does."""
        again = np.where(self.graph.arrays.recompute, weights, 0.0)
        skip, save, alone = (_sums(ops, again) for ops in (self.skip, self.save, self.alone))
        backward = _sums(self.backward, weights)
        once = float(weights[self.graph.needed].sum()) - float(save.sum() + backward.sum())
        return Times(skip, save, alone, backward, once)

    def leaving(self, other: Chain, weights: np.ndarray) -> np.ndarray:
        """float64 [stages]: what forward costs where it makes the output and leaves behind what stays in `other`, which is
        the same chain with more kept."""
        a = self.graph.arrays
        lives, kept = self.lives, other.lives.kept
        forward = np.array([o for ops in self.forward for o in ops if o not in self.once], np.int64)
        wanted = lives.enters | kept
        runs = _making(self.graph, forward, wanted, lives.kept)
        stage = lives.made[a.out_ids[a.out_ptr[runs]]]
        return np.bincount(stage, np.where(a.recompute, weights, 0.0)[runs], len(self))

    def runs(self, operations: Iterable[Operation], reuse: bool = False) -> list[int]:
        """The ops in the order in which they run, useless runs left out.

        operations : forward must reach the turn stage by stage before any backward; backward runs each stage once, in
        reverse, and each is run forward again before it where that is wanted. What is kept is not looked at: a value
        lives from where it is made to where it is last read before it is made again.
        reuse : do not make again what lay in the input of the stage whose backward has just run. It was at hand then,
        and lives on. Only where inputs share values (concatenations) does that change anything.
        """
        forward, backward = ([np.array(ops, np.int64) for ops in side] for side in (self.forward, self.backward))
        parts, behind = [], len(self)
        for what, stage in operations:
            if what == BACKWARD:
                parts.append(backward[stage])
                behind = stage
            elif reuse and behind < len(self):
                ops = forward[stage]
                parts.append(ops[self.reach[ops] < behind])
            else:
                parts.append(forward[stage])
        return prune(self.graph, np.concatenate(parts))

    def lower(self, operations: Iterable[Operation], solver: str) -> Schedule:
        """The schedule of the operations; see `runs`."""
        return Schedule.from_runs(self.graph, self.runs(operations), solver)

    def schedules(self, operations: Iterable[Operation], solver: str) -> list[Schedule]:
        """The schedule of the operations, and the one that reuses values if that is another."""
        return [Schedule.from_runs(self.graph, runs, solver) for runs in self.both(operations)]

    def both(self, operations: Iterable[Operation]) -> list[list[int]]:
        """The runs of the operations, and those that reuse values if they are others."""
        done = list(operations)
        found = [self.runs(done), self.runs(done, reuse=True)]
        return found if found[0] != found[1] else found[:1]


def segmented(turn: int, cuts: Sequence[int], last_again: bool = False) -> Iterator[Operation]:
    """The operations that keep the inputs of the stages `cuts` and run what lies between two of them again once.

    last_again : whether that is done to the last segment too, with which backward begins.
    """
    kept = {0, *cuts} - {turn} if last_again else {0, *cuts}
    begins = sorted(kept)
    ends = [*begins[1:], turn if last_again else turn + 1]
    kept_from = turn if last_again else begins[-1]
    for stage in range(turn + 1):
        yield (KEEP_ALL if stage >= kept_from else KEEP_INPUT if stage in kept else FORGET), stage
    if last_again:
        yield BACKWARD, turn
    for begin, end in zip(reversed(begins), reversed(ends), strict=True):
        if begin < kept_from:
            yield from ((KEEP_ALL, stage) for stage in range(begin, end))
        yield from ((BACKWARD, stage) for stage in range(end - 1, begin - 1, -1))


_recent: OrderedDict[tuple[object, ...], Chain | None] = OrderedDict()
REMEMBERED = 2  # chains; one solver after the other asks for the same


def chain_of(graph: Graph, most: int | None = None) -> Chain | None:
    """The chain of a graph, or None where nothing marks the end of forward or no op leads to a result.

    most : the number of stages (at least 2) beyond which neighbours are merged; what is least to keep stays an input.
    """
    key = (graph.hash, graph.resident_bytes, graph.arrays.workspace.tobytes(), most)
    chain = _recent.pop(key) if key in _recent else _chain_of(graph, most)
    _recent[key] = chain
    while len(_recent) > REMEMBERED:
        _recent.popitem(last=False)
    return chain


def _chain_of(graph: Graph, most: int | None) -> Chain | None:
    forward = forward_dag(graph)
    if forward is None:
        return None
    splits = series(graph, forward)
    chain = chain_at(graph, forward, splits)
    if most is None or len(chain) <= most:
        return chain
    return chain_at(graph, forward, _fewer(splits, chain.input, most))


def chain_at(graph: Graph, forward: Forward, splits: list[int]) -> Chain:
    """The chain whose stages end at the vertices `splits` of the forward DAG, the source and the target among them.
    They need not be splitting vertices: whatever passes from one stage to later ones is their input."""
    return _Builder(graph, forward, splits).build()


def with_kept(chain: Chain, kept: Iterable[np.ndarray]) -> Iterator[Chain]:
    """The chain where of what forward makes and backward reads, some values stay until the backward of their stage
    whatever the plan is, so that forward does not make them again; kept : for each chain wanted, bool [values]."""
    builder = copy(chain.builder)
    size = builder.size
    for values in kept:
        builder.keep(values, size)
        yield builder.build()


def _fewer(splits: list[int], cost: np.ndarray, most: int) -> list[int]:
    """`most` of the splitting vertices at most: the cheapest of each of as many stretches of equal length."""
    parts = np.array_split(np.arange(1, len(splits) - 1), max(1, most - 2))
    inner = [splits[min(part, key=lambda p: int(cost[p]))] for part in parts if len(part)]
    return [splits[0], *inner, splits[-1]]


class _Builder:
    """For made, last, group, used and size see `Lives`."""

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
        self.size = graph.arrays.bytes.copy()
        aside = self._held(forward)
        self.held = int(self.size[aside].sum())
        self.size[aside] = 0
        self.reach = self._reach()
        self.keep(np.zeros(count, np.bool_), self.size)

    def keep(self, values: np.ndarray, size: np.ndarray) -> None:
        """Make `values` stay, but for those of ops that must run again for another of their outputs: nothing would be
        spared. size : bytes of all values where none does."""
        a = self.graph.arrays
        wanted = (self.made >= 0) & ((self.last > self.made) | (self.used < self.n))
        kept = values & (self.made >= 0) & (self.made < self.turn) & (self.used < self.n)
        forward = np.array([o for o in sorted(self.stage) if o < self.end], np.int64)
        again = _making(self.graph, forward, wanted, kept)
        self.kept = kept & ~np.isin(a.producer, again)
        self.keeping = np.bincount(self.made[self.kept], size[self.kept], self.n).astype(np.int64)
        self.size = np.where(self.kept, 0, size)
        self.once = frozenset(a.producer[self.kept].tolist())

    def _forward(self, ops: list[int], forward: Forward) -> None:
        vertex = {o: bisect_left(self.splits, v) - 1 for v, o in enumerate(forward.ops) if o >= 0}
        first = dict(vertex)  # the first stage that an op is wanted in
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
        free = self.n  # not bound to a stage: reads only what the caller holds
        for o in ops:
            needs = [int(self.last[v] if self.made[v] >= 0 else self.group[v]) for v in self.graph.ops[o].inputs]
            stage = min((s for s in needs if s >= 0), default=free)
            self.stage[o] = stage
            self.group[list(self.graph.ops[o].outputs)] = stage
        for o in reversed(ops):  # those run where they are first read
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

    def build(self) -> Chain:
        forward: list[list[int]] = [[] for _ in range(self.n)]
        backward: list[list[int]] = [[] for _ in range(self.n)]
        for o in sorted(self.stage):
            behind = o >= self.end and o != self.graph.boundary
            (backward if behind else forward)[self.stage[o]].append(o)
        lives = Lives(self.n, self.made, self.last, self.group, self.used, self.size, self.kept)
        measure = Measure(self.graph, lives, self.once)
        rows = [measure.stage(stage, forward[stage], backward[stage]) for stage in range(self.n)]
        parts, sizes = zip(*rows, strict=True)
        skip, save, alone = zip(*parts, strict=True)
        saved, passed_on, *peaks = np.array(sizes, np.int64).T.copy()
        return Chain(
            copy(self), self.graph, _tuples(forward), _tuples(backward), self.once, skip, save, alone, lives, self.held,
            self.reach, self.keeping, saved, passed_on, lives.gradient, *peaks,
        )  # fmt: skip

    def _reach(self) -> np.ndarray:
        reach = np.full(len(self.graph.ops), -1)
        for o in self.stage:
            wanted = [v for v in self.graph.ops[o].outputs if self.used[v] < self.n or self.last[v] >= 0]
            reach[o] = min((int(self.last[v]) for v in wanted), default=-1)
        return reach


def _making(graph: Graph, ops: np.ndarray, wanted: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Those of `ops`, in order, that make the values `wanted` where the values `kept` are there."""
    a = graph.arrays
    every = np.ones(len(a.recompute), np.bool_)
    producer = np.where(kept, -1, a.producer)
    return kernel.prune(ops, producer, a.in_ptr, a.in_ids, a.out_ptr, a.out_ids, every, wanted & ~kept)


def _sums(stages: Stages, weights: np.ndarray) -> np.ndarray:
    return np.array([weights[list(ops)].sum() for ops in stages], np.float64)


def _tuples(rows: list[list[int]]) -> Stages:
    return tuple(tuple(r) for r in rows)
