"""The storages that a schedule holds: from when to when and why, the largest at its peak, those saved for backward.

All are read off the schedule step by step, with the judge's rules, so that the bytes add up to the judge's memory.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from ..model.graph import Graph, Op
from ..model.judge import Simulation, simulate
from ..model.op_names import does
from ..model.schedule import FETCH, FREE, RUN, Schedule
from .modules import pattern_of

WORKSPACE, RUNNING, GRADIENT, SAVED, RECOMPUTED, FORWARD = (
    "workspace", "running", "gradient", "saved", "recomputed", "forward",
)  # fmt: skip


RESIDENT = "resident"  # the role of what is held during the whole step


class Life(NamedTuple):
    """A value from the run that makes it, or after which it is fetched, to the last run that it is held in.

    op : the op that makes it. role : "saved", "recomputed", "gradient" or "forward", as in `Held`.
    first, last : indices of runs; the value counts as held in the runs after `first`, up to `last`, in which it may be written
        over. Where nothing frees it, `last` is the number of runs.
    """

    value: int
    op: int
    role: str
    first: int
    last: int


@dataclass(frozen=True)
class Lives:
    """The values that a schedule holds, each with the runs from which to which it is held, and why.

    judged : the judge's figures.
    ops, into : int64 [runs], the op of each run, and the value that it writes over or -1.
    memory : int64 [runs], the judge's bytes in each run, resident bytes included.
    boundary : index of the run with which forward ends; None: no such op runs.
    every : in the order in which they begin.
    """

    judged: Simulation
    ops: np.ndarray
    into: np.ndarray
    memory: np.ndarray
    boundary: int | None
    every: tuple[Life, ...]

    @classmethod
    def of(cls, graph: Graph, schedule: Schedule) -> Lives:
        """The lives of a schedule's values. O(steps + edges).

        Raises
        ------
        FormatError : the schedule is for another graph, or breaks a rule.
        """
        judged = simulate(graph, schedule)
        is_run = schedule.array[:, 0] == RUN
        ops, into = schedule.array[is_run, 1], schedule.array[is_run, 2]
        boundary = forward_end(graph, ops)
        return cls(judged, ops, into, judged.memory[is_run], boundary, _lives(graph, schedule, boundary))

    @property
    def peak(self) -> int:
        """Index of the first run that holds most; -1 where nothing runs."""
        return int(self.memory.argmax()) if len(self.ops) else -1


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that are held during the run at the peak.

    op : the op that made them, or whose workspace they are.
    value : the storage; None for workspace.
    role : the first of these that fits: "workspace" and "running" (of the op that runs), "saved" (made before forward ended,
        held after that), "recomputed" (made by an op that ran before), "gradient" (made by backward), "forward" (made by
        forward).
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
    """What a schedule holds at its peak. O(steps + edges). Raises as `Lives.of`."""
    return peak_of(graph, Lives.of(graph, schedule))


def peak_of(graph: Graph, lives: Lives) -> Peak:
    """The peak of a schedule whose lives are known."""
    at, judged = lives.peak, lives.judged
    if at < 0:
        return Peak(judged.peak_bytes, None, False, False, (), judged.runs, frozenset())
    op = int(lives.ops[at])
    return Peak(
        judged.peak_bytes, op, again=bool((lives.ops[:at] == op).any()),
        backward=lives.boundary is not None and at > lives.boundary, held=_held(graph, lives, at), runs=judged.runs,
        saved=frozenset(x.value for x in lives.every if x.role == SAVED),
    )  # fmt: skip


def forward_end(graph: Graph, ops: np.ndarray) -> int | None:
    """Index of the run with which forward ends: that of the boundary, else the first run of backward; None where there is none.

    ops : int64 [runs], the op of each run.
    """
    backward = np.array([o.backward for o in graph.ops], np.bool_)[ops]
    ends = backward if graph.boundary is None else ops == graph.boundary
    return int(ends.argmax()) if ends.any() else None


def is_gradient(graph: Graph, op: int) -> bool:
    """Whether the op makes gradients: it belongs to backward, or hands over those that come back from the loss."""
    return graph.ops[op].backward or op == graph.boundary


def _lives(graph: Graph, schedule: Schedule, boundary: int | None) -> tuple[Life, ...]:
    # value, op, whether the op ran before, index of the run; and of the run after which it is held: a later one if fetched
    made: list[tuple[int, int, bool, int, int]] = []
    last: dict[int, int] = {}  # position in `made` -> the last run of this life
    live: dict[int, int] = {}  # value -> position in `made`
    latest: dict[int, int] = {}  # the same of values that were made, live or not
    ran: set[int] = set()
    run = -1
    for kind, i, into in schedule.array.tolist():
        if kind == FREE:
            last[live.pop(i)] = run
        elif kind == FETCH:
            live[i] = len(made)
            made.append((*made[latest[i]][:4], run))
        if kind != RUN:
            continue
        run += 1
        for v in graph.ops[i].outputs:
            if v not in live:
                live[v] = latest[v] = len(made)
                made.append((v, i, i in ran, run, run))
        ran.add(i)
        if into >= 0:
            last[live.pop(into)] = run
    runs = run + 1

    def role(op: int, again: bool, made_in: int, end: int) -> str:
        if boundary is not None and made_in < boundary < end:
            return SAVED
        return RECOMPUTED if again else GRADIENT if is_gradient(graph, op) else FORWARD

    ends = (last.get(k, runs) for k in range(len(made)))
    return tuple(
        Life(v, op, role(op, again, made_in, end), first, end)
        for (v, op, again, made_in, first), end in zip(made, ends, strict=True)
    )


def _held(graph: Graph, lives: Lives, at: int) -> tuple[Held, ...]:
    """All that is held in the run `at`: its op's first output costs nothing where it takes the storage of another value."""
    op, size = int(lives.ops[at]), graph.arrays.bytes.tolist()
    made = graph.ops[op].outputs[1 if lives.into[at] >= 0 else 0 :]
    held = [Held(size[x.value], x.op, x.value, x.role) for x in lives.every if x.first < at <= x.last]
    held += [Held(size[v], op, v, RUNNING) for v in made]
    held.append(Held(graph.ops[op].workspace, op, None, WORKSPACE))
    return tuple(h for h in held if h.bytes)


@dataclass(frozen=True)
class Holder:
    """Bytes that are held at the peak.

    bytes : all of them together. count : how many values.
    role : as in `Held`; "resident" for what is held during the whole step.
    module : pattern of the modules that made the values. operator : e.g. "addmm". shape : of one value, e.g. "f32[8192,4096]".
    """

    bytes: int
    count: int
    role: str
    module: str
    operator: str
    shape: str

    @property
    def words(self) -> str:
        """The holder in one line, for a terminal: "transformer.h.*.mlp.act tanh f32[8,1024,4096]"."""
        return " ".join(part for part in (self.module, self.operator, self.shape) if part)

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def holders(graph: Graph, p: Peak, patterns: dict[str, str]) -> list[Holder]:
    """All holders at the peak, the largest first; their bytes add up to `p.bytes`.

    patterns : module path -> its folded pattern, as `folded_paths` gives it.
    """
    found: dict[tuple[str, str, str, str], list[int]] = {}
    for h in p.held:
        op = graph.ops[h.op]
        key = h.role, pattern_of(op.module, patterns), does(op), _shape(op, h.value)
        found.setdefault(key, []).append(h.bytes)
    every = [Holder(sum(sizes), len(sizes), *key) for key, sizes in found.items()]
    if graph.resident_bytes:
        every.append(Holder(graph.resident_bytes, 1, RESIDENT, "", "parameters, gradients, buffers, inputs", ""))
    return sorted(every, key=lambda h: -h.bytes)


def _shape(op: Op, value: int | None) -> str:
    """The shape of a value, as far as the graph says it: of the first output."""
    if value is None:
        return op.shape
    place = op.outputs.index(value)
    return op.shape if place == 0 else f"(output {place + 1})"
