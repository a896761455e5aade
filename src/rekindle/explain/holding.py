"""The storages that a schedule holds at its peak, and those that it saves from forward for backward.

Both are read off the schedule step by step, with the judge's rules, so that the bytes add up to the judge's peak.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..model.graph import Graph
from ..model.judge import simulate
from ..model.schedule import RUN, Schedule

WORKSPACE, RUNNING, GRADIENT, SAVED, RECOMPUTED, FORWARD = (
    "workspace", "running", "gradient", "saved", "recomputed", "forward",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that are held during the run at the peak.

    op : the op that made them, or whose workspace they are.
    value : the storage; None for workspace.
    role : "workspace" and "running" (made by the op that runs), "gradient" (made by backward), "saved" (made by forward, held
        for backward), "recomputed" (made again by ops of forward, in backward), or "forward" (used by forward alone).
    """

    bytes: int
    op: int
    value: int | None
    role: str


@dataclass(frozen=True)
class Peak:
    """The run at which a schedule holds most.

    bytes : as the judge says, resident bytes included.
    op : id of the op that runs; None where nothing runs.
    again : whether it ran before. backward : whether forward had ended.
    held : all that is held beside the resident bytes: its sum is `bytes` less those.
    runs : int64 [ops], how often each op runs in the whole schedule.
    saved : ids of the values that are held from the end of forward until backward uses them.
    """

    bytes: int
    op: int | None
    again: bool
    backward: bool
    held: tuple[Held, ...]
    runs: np.ndarray
    saved: frozenset[int]


def peak(graph: Graph, schedule: Schedule) -> Peak:
    """What a schedule holds at its peak. O(steps + edges).

    Raises
    ------
    FormatError : the schedule is for another graph, or breaks a rule.
    """
    judged = simulate(graph, schedule)
    rows = schedule.array.tolist()
    end = forward_end(graph, rows)
    ran: set[int] = set()
    made_after: dict[int, bool] = {}  # live value -> whether it was made after forward had ended
    saved: frozenset[int] = frozenset()
    at_peak: dict[int, bool] = {}
    found = Peak(judged.peak_bytes, None, False, False, (), judged.runs, saved)
    for s, (kind, i, into) in enumerate(rows):
        if kind != RUN:
            made_after.pop(i)
            continue
        if s == judged.peak_step:
            found, at_peak = replace(found, op=i, again=i in ran, backward=s > end), dict(made_after)
        if s == end:
            saved = frozenset(made_after) - _freed_next(rows, s)
        ran.add(i)
        for v in graph.ops[i].outputs:
            made_after.setdefault(v, s > end)
        if into >= 0:
            made_after.pop(into)
    if found.op is None:
        return found
    passing = frozenset() if found.backward else frozenset(at_peak) - saved
    return replace(found, saved=saved, held=_held(graph, rows[judged.peak_step], at_peak, passing))


def forward_end(graph: Graph, rows: list[list[int]]) -> int:
    """The step with which forward ends: the run of the boundary, else the first run of backward; the number of steps where
    the graph has neither."""

    def ends(i: int) -> bool:
        return i == graph.boundary if graph.boundary is not None else graph.ops[i].backward

    return next((s for s, (kind, i, _) in enumerate(rows) if kind == RUN and ends(i)), len(rows))


def is_gradient(graph: Graph, op: int) -> bool:
    """Whether the op makes gradients: it belongs to backward, or hands over those that come back from the loss."""
    return graph.ops[op].backward or op == graph.boundary


def _freed_next(rows: list[list[int]], at: int) -> set[int]:
    """The values that end with the run `at` and with the frees right after it."""
    freed = {rows[at][2]}
    for kind, i, _ in rows[at + 1 :]:
        if kind == RUN:
            break
        freed.add(i)
    return freed


def _held(graph: Graph, run: list[int], made_after: dict[int, bool], passing: frozenset[int]) -> tuple[Held, ...]:
    """made_after : live value -> whether it was made after forward had ended. passing : values that forward alone uses."""
    _, i, into = run
    op, size, producer = graph.ops[i], graph.arrays.bytes.tolist(), graph.arrays.producer.tolist()

    def role(v: int) -> str:
        if is_gradient(graph, producer[v]):
            return GRADIENT
        return RECOMPUTED if made_after[v] else FORWARD if v in passing else SAVED

    first = op.outputs[0] if into >= 0 else None  # it takes the storage of `into`, which is live until then
    held = [Held(size[v], producer[v], v, role(v)) for v in made_after]
    held += [Held(size[v], i, v, RUNNING) for v in op.outputs if v != first]
    held.append(Held(op.workspace, i, None, WORKSPACE))
    return tuple(h for h in held if h.bytes)
