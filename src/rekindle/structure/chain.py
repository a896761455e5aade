"""Any graph as a chain of stages: the parts between the splitting vertices of its forward DAG (see `cuts.series`).

Forward runs stages 0 to n - 1 in order, backward runs them in reverse. The last stage is the turn: its forward is the
boundary op alone (nothing where the graph has none), which reads the results and makes the gradients that come back.
`stages` says which op belongs to which stage.

The input of a stage is everything that passes its beginning, values that only later stages read included. So where later
stages read all earlier layers (concatenations), the inputs of stages share values.

Sizes are bytes, found by running each stage alone. Values that are live for most of a step whatever the plan is (masks,
results that the caller keeps, outputs of ops that must not run twice) are `held` and count nowhere else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..kernels.rotor import BACKWARD, FORGET, KEEP_ALL, KEEP_INPUT
from ..model.graph import Graph
from ..model.schedule import Schedule
from .archive import making, prune
from .cuts import series
from .forward import Forward, forward_dag
from .lives import Lives
from .stage_sizes import StageSizes
from .stages import Assignment, Stages

# An operation on a stage, as papers on chains write their schedules: (kind, stage). FORGET, KEEP_INPUT and KEEP_ALL run the
# stage forward and save nothing, its input, or all that backward reads of it; BACKWARD runs its backward.
Operation = tuple[int, int]
REMEMBERED_CHAINS = 2  # one solver after the other asks for the same


class Times(NamedTuple):
    """Costs of each stage, float64 [stages].

    skip : forward for the output alone.
    save : forward for the output and the values that backward reads.
    alone : forward for the values that backward reads alone, right before it.
    backward : backward.
    once : float; ops that run once in any case, which none of the others counts.
    """

    skip: np.ndarray
    save: np.ndarray
    alone: np.ndarray
    backward: np.ndarray
    once: float


@dataclass(frozen=True)
class Chain:
    """n stages, the turn included.

    Backward reads a part of the input of a stage; the rest is gone once forward has passed the stage for the last time. A
    peak counts what a stage takes beyond the part of its input that backward reads and beyond `held`, and, going forward,
    beyond the gradient that waits.

    assignment : the stage of every op and value.
    forward, backward : per stage its ops in baseline order.
    once : ops that forward runs only the first time, since their outputs are kept.
    lives : the stages that make and read each value.
    skip, save, alone : per stage the forward ops needed for the output alone, for the output and the values that backward
        reads, and for the values that backward reads alone.
    held : bytes that are live for most of a step whatever the plan is.
    reach : int64 [ops]; the last stage whose input has all the outputs of the op that a step needs.
    keeping : int64 [n]; bytes that stay from forward to backward whatever the plan is, see `with_kept`; in nothing else.
    saved : int64 [n]; bytes that forward of the stage makes and backward reads.
    passed_on : int64 [n]; the part of `saved` that a later stage reads too.
    gradient : int64 [n]; bytes that wait for the backward of stages 0 to l, once the backward of later ones has run.
    skip_peak : int64 [n]; forward for the output alone.
    save_peak : int64 [n]; forward for the output and the values that backward reads.
    alone_peak : int64 [n]; forward for the values that backward reads and backward right after it, the gradient counted.
    backward_peak : int64 [n]; backward after `save`, the saved values and the gradient counted.
    """

    assignment: Assignment
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
        """int64 [n, n]; hold[i, j], i < j: bytes of the inputs of i and j, where both are held, that a peak of stage i
        counts and a peak of stage j does not. (Bytes that both share and backward does not read, as only concatenations
        have, are taken to end with j.)"""
        return self.lives.hold()

    @cached_property
    def passing(self) -> np.ndarray:
        """int64 [n, n]; passing[i, j], i <= j: peak, beyond the input of i, while forward passes j for its output alone and
        the input of i is held."""
        return self.lives.unread[:, None] + self.lives.entering() + self.skip_peak

    def times(self, weights: np.ndarray) -> Times:
        """The costs of the parts of each stage. weights : float64 [ops], the cost of a run of each op."""
        again = np.where(self.graph.arrays.recompute, weights, 0.0)
        skip, save, alone = (_sums(ops, again) for ops in (self.skip, self.save, self.alone))
        backward = _sums(self.backward, weights)
        once = float(weights[self.graph.needed].sum()) - float(save.sum() + backward.sum())
        return Times(skip, save, alone, backward, once)

    def leaving(self, other: Chain, weights: np.ndarray) -> np.ndarray:
        """float64 [stages]: cost of a forward that makes the output and leaves behind the values that `other` keeps, which
        is the same chain with more kept."""
        a = self.graph.arrays
        forward = np.array([o for ops in self.forward for o in ops if o not in self.once], np.int64)
        runs = making(self.graph, forward, self.lives.enters | other.lives.kept, self.lives.kept)
        stage = self.lives.made[a.out_ids[a.out_ptr[runs]]]
        return np.bincount(stage, np.where(a.recompute, weights, 0.0)[runs], len(self))

    def runs(self, operations: Iterable[Operation], reuse: bool = False) -> list[int]:
        """The ops in the order in which they run, useless runs left out.

        operations : forward must reach the turn stage by stage before any backward; backward runs each stage once, in
            reverse, and each is run forward again before it where that is wanted. Which values an operation keeps is not
            looked at: a value lives from where it is made to where it is last read before it is made again.
        reuse : do not recompute values that lay in the input of the stage whose backward has just run. They were at hand
            then, and live on. Only where inputs share values (concatenations) does that change anything.
        """
        forward, backward = ([np.array(ops, np.int64) for ops in side] for side in (self.forward, self.backward))
        parts, behind = [], len(self)
        for kind, stage in operations:
            if kind == BACKWARD:
                parts.append(backward[stage])
                behind = stage
            elif reuse and behind < len(self):
                ops = forward[stage]
                parts.append(ops[self.reach[ops] < behind])
            else:
                parts.append(forward[stage])
        return prune(self.graph, np.concatenate(parts))

    def schedules(self, operations: Iterable[Operation], solver: str) -> list[Schedule]:
        """The schedule of the operations, and the one that reuses values if it differs."""
        return [Schedule.from_runs(self.graph, runs, solver) for runs in self.both(operations)]

    def both(self, operations: Iterable[Operation]) -> list[list[int]]:
        """The runs of the operations, and the runs that reuse values if they differ."""
        done = list(operations)
        found = [self.runs(done), self.runs(done, reuse=True)]
        return found if found[0] != found[1] else found[:1]


_recent: OrderedDict[tuple[object, ...], Chain | None] = OrderedDict()


def chain_of(graph: Graph, most: int | None = None) -> Chain | None:
    """The chain of a graph, or None where nothing marks the end of forward or no op leads to a result.

    most : the number of stages (at least 2) beyond which neighbours are merged; inputs that take least bytes stay inputs.
    """
    key = (graph.hash, graph.resident_bytes, graph.arrays.workspace.tobytes(), most)
    chain = _recent.pop(key) if key in _recent else _chain_of(graph, most)
    _recent[key] = chain
    while len(_recent) > REMEMBERED_CHAINS:
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


def _fewer(splits: list[int], cost: np.ndarray, most: int) -> list[int]:
    """`most` of the splitting vertices at most: the cheapest of each of as many stretches of equal length."""
    parts = np.array_split(np.arange(1, len(splits) - 1), max(1, most - 2))
    inner = [splits[min(part, key=lambda p: int(cost[p]))] for part in parts if len(part)]
    return [splits[0], *inner, splits[-1]]


def chain_at(graph: Graph, forward: Forward, splits: list[int]) -> Chain:
    """The chain whose stages end at the vertices `splits` of the forward DAG, the source and the target among them.
    They need not be splitting vertices: a value that passes from one stage to later ones is an input of each of them."""
    return _measured(Assignment(graph, forward, splits))


def with_kept(chain: Chain, kept: Iterable[np.ndarray]) -> Iterator[Chain]:
    """The chain where some values that forward makes and backward reads stay until the backward of their stage whatever
    the plan is, so that forward does not recompute them.

    kept : for each chain wanted, bool [values].
    """
    for values in kept:
        yield _measured(chain.assignment.keeping(values))


def _measured(assignment: Assignment) -> Chain:
    """The chain of an assignment, with the sizes of each stage."""
    graph, lives = assignment.graph, assignment.lives
    forward, backward = assignment.sides
    sizes = StageSizes(graph, lives, assignment.once)
    rows = [sizes.of(stage, forward[stage], backward[stage]) for stage in range(assignment.n)]
    skip, save, alone = (tuple(getattr(row, part) for row in rows) for part in ("skip", "save", "alone"))
    saved, passed_on, *peaks = np.array([row.sizes for row in rows], np.int64).T.copy()
    return Chain(
        assignment, graph, forward, backward, assignment.once, skip, save, alone, lives, assignment.held,
        assignment.reach, assignment.kept_bytes, saved, passed_on, lives.gradient, *peaks,
    )  # fmt: skip


def _sums(stages: Stages, weights: np.ndarray) -> np.ndarray:
    return np.array([weights[list(ops)].sum() for ops in stages], np.float64)


def segmented(turn: int, cuts: Sequence[int], last_again: bool = False) -> Iterator[Operation]:
    """The operations that save the inputs of the stages `cuts` and run each segment between two of them forward again once.

    turn : the last stage. last_again : run the last segment, with which backward begins, forward again too.
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
