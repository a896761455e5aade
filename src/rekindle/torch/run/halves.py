"""A schedule cut at the boundary: the steps of forward and of backward, and what forward hands to backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx

from ...errors import RekindleError
from ...model.graph import ACCUMULATE, COPY, OPERATOR, SNAPSHOT, Graph
from ...model.schedule import Fetch, Free, Offload, Run, Schedule, Step
from ..capture.captured import base_of
from ..lowering.lowered import Lowered
from ..operators import rules
from ..operators.hidden_writes import BATCH_NORMS, STATISTICS

Steps = tuple[Step, ...]


@dataclass(frozen=True)
class Halves:
    """The two halves of a schedule.

    forward : the steps before the boundary. dropped : the frees right after it. backward : the steps after those.
    saved : values that backward takes from forward.
    read : placeholders that backward reads as forward found them: through views, or where it recomputes.
    itself : placeholders that ops of backward take as they are, for which eager saves the very tensor.
    replayed : random ops that run more than once: later runs draw the numbers of the first again.
    """

    forward: Steps
    dropped: Steps
    backward: Steps
    saved: list[int]
    read: list[fx.Node]
    itself: list[fx.Node]
    replayed: set[int]


def cut(low: Lowered, schedule: Schedule) -> Halves:
    """The halves of a schedule.

    Raises
    ------
    RekindleError : the schedule runs random ops in another order than the model does.
    """
    steps = schedule.steps
    boundary = next(i for i, s in enumerate(steps) if isinstance(s, Run) and s.op == low.graph.boundary)
    after = boundary + 1
    while after < len(steps) and isinstance(steps[after], Free):
        after += 1
    forward, dropped, backward = steps[:boundary], steps[boundary + 1 : after], steps[after:]
    _check_random_order(low, forward, backward)
    _check_copies(low.graph, steps)
    twice = [o for o, times in Counter(schedule.runs).items() if times > 1]
    replayed = {o for o in twice if _is_random(low, o)}
    found = {x for s in backward if isinstance(s, Run) for x in placeholders_read(low, s.op)}
    read, itself = ([p for p in low.captured.placeholders if (p, way) in found] for way in (False, True))
    return Halves(forward, dropped, backward, _live_after(low, forward, dropped, backward), read, itself, replayed)


def read_late(low: Lowered, forward: Steps) -> set[int]:
    """Snapshots that forward reads after the mutation: solvers may move the mutation to before the readers."""
    taken: dict[fx.Node, set[int]] = {}  # placeholder -> its snapshots since the last mutation
    mutated: set[int] = set()
    late: set[int] = set()
    home = low.writes.home
    for s in forward:
        if isinstance(s, Run):
            op, call = low.graph.ops[s.op], low.calls[s.op]
            late |= mutated.intersection(op.inputs)
            n: Any = call.node
            if call.kind == SNAPSHOT:
                taken.setdefault(home.get(n, n), set()).add(op.outputs[0])
            elif call.kind == COPY or n in low.writes.over:
                mutated |= taken.pop(home.get(n, n), set())
    return late


def last_reads(low: Lowered, backward: Steps) -> dict[int, list[int]]:
    """Position in backward -> values to keep that no later step of it reads: gradients, which belong to the caller then."""
    graph = low.graph
    kept = {v for v in graph.keep if low.parts[v] and graph.arrays.producer[v] >= 0}
    rows: dict[int, list[int]] = {}
    for i in range(len(backward) - 1, -1, -1):
        s = backward[i]
        if isinstance(s, Run):
            for v in graph.ops[s.op].inputs:
                if v in kept:
                    kept.discard(v)
                    rows.setdefault(i, []).append(v)
    return rows


def _live_after(low: Lowered, forward: Steps, dropped: Steps, backward: Steps) -> list[int]:
    """Values that forward has made and not freed, in the order in which they were made."""
    live: dict[int, None] = {}
    for s in forward:
        if isinstance(s, Free):
            live.pop(s.value)
        elif isinstance(s, Fetch):
            live[s.value] = None
        elif isinstance(s, Run):
            live |= dict.fromkeys(low.graph.ops[s.op].outputs)
            if s.into is not None:
                live.pop(s.into)
    for s in dropped:
        assert isinstance(s, Free)
        live.pop(s.value, None)
    # A tensor to which forward sets an attribute is the module's: it is handed on only if backward reads it.
    kept = set(low.graph.keep).difference(v for s in backward if isinstance(s, Run) for v in low.graph.ops[s.op].inputs)
    return [v for v in live if (low.parts[v] or v in low.snapshots.values()) and v not in kept]


def saved_by_eager(low: Lowered) -> set[fx.Node]:
    """Placeholders that eager saves in forward, so that they must not be written to before its backward."""
    running = {
        base_of(w.args[i]) for w in low.captured.writing.values() if w.target in BATCH_NORMS for i in STATISTICS
        if w.args[i] is not None
    }  # fmt: skip
    return running.union(
        p
        for o, op in enumerate(low.graph.ops)
        if op.kind == OPERATOR and op.backward
        for p, _ in placeholders_read(low, o)
    )


def placeholders_read(low: Lowered, op: int) -> Iterator[tuple[fx.Node, bool]]:
    """(placeholder, whether the op takes the tensor itself, as eager's backward does) for each placeholder that an op reads,
    through views as well. An op that makes again what forward made reads it as forward found it."""
    call, tangents = low.calls[op], low.captured.tangents
    handed = call.kind == ACCUMULATE
    node = low.captured.gradients[call.node] if handed else call.node  # type: ignore[index]
    if node is None:
        return
    swaps = node in low.reads_snapshot
    late = low.graph.ops[op].backward
    stack = [(node, False)] if handed else [(a, late) for a in node.all_input_nodes]
    while stack:
        n, itself = stack.pop()
        if swaps and n in low.snapshots:
            continue
        if n.op == "placeholder" and n not in tangents:
            yield n, itself
        elif n in low.writes.over:
            stack.append((n.args[0], False))  # type: ignore[arg-type]
        elif n in low.views:
            stack += [(a, False) for a in n.all_input_nodes]


def _check_random_order(low: Lowered, forward: Steps, backward: Steps) -> None:
    """Check that each half draws the random numbers that the model draws there, in the model's order."""
    ops = low.graph.ops
    drawing = [o for o in range(len(low.calls)) if _is_random(low, o)]
    draws = set(drawing)
    ran = dict.fromkeys(s.op for steps in (forward, backward) for s in steps if isinstance(s, Run))
    early = {s.op for s in forward if isinstance(s, Run)}
    if [o for o in ran if o in draws] != drawing or any((o in early) == ops[o].backward for o in drawing):
        raise RekindleError("the schedule draws random numbers in another order than the model; it cannot be run")


def _check_copies(graph: Graph, steps: Steps) -> None:
    """Check that no value is written over while a copy of it is yet to be fetched, and that none is copied that the caller may
    hold."""
    copied: set[int] = set()
    for s in steps:
        if isinstance(s, Offload):
            if graph.shared[s.value]:
                raise RekindleError(
                    f"the schedule copies value {s.value} to the host, which the caller may hold; it cannot be run"
                )
            copied.add(s.value)
        elif isinstance(s, Fetch):
            copied.discard(s.value)
        elif isinstance(s, Run) and s.into in copied:
            raise RekindleError(
                f"the schedule writes over value {s.into}, of which the host has a copy; it cannot be run"
            )


def _is_random(low: Lowered, op: int) -> bool:
    node = low.calls[op].node
    return node is not None and rules.draws_random(node.target)
