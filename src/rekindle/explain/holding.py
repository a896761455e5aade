"""The storages that a schedule holds: from when to when and why, the largest at its peak, those saved for backward.

All are read off the schedule step by step, with the judge's rules, so that the bytes add up to the judge's memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..model.graph import Graph, Op
from ..model.judge import Simulation, simulate
from ..model.op_names import does
from ..model.schedule import FETCH, FREE, OFFLOAD, RUN, Schedule
from ..saying.shares import EPS
from .modules import pattern_of

WORKSPACE, RUNNING, GRADIENT, SAVED, FETCHED, RECOMPUTED, FORWARD = (
    "workspace", "running", "gradient", "saved", "fetched", "recomputed", "forward",
)  # fmt: skip


RESIDENT = "resident"  # the role of what is held during the whole step


class Life(NamedTuple):
    """A value from the run that makes it, or the fetch that brings it back, to the last run that it is held in.

    op : the op that makes it. role : "saved", "fetched", "recomputed", "gradient" or "forward", as in `Held`.
    first, last : indices of runs; the value counts as held in the runs after `first`, up to `last`, in which it may be written
        over. A fetch comes after the run `first`. Where nothing frees the value, `last` is the number of runs.
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
    memory : int64 [runs], the judge's bytes in each run, resident bytes included; see `run_memory`.
    away : int64 [runs], bytes of the values that the host has, and the device has not.
    boundary : index of the run with which forward ends; None: no such op runs.
    every : in the order in which they begin.
    moved : value -> how often it is copied to the host.
    """

    judged: Simulation
    ops: np.ndarray
    into: np.ndarray
    memory: np.ndarray
    away: np.ndarray
    boundary: int | None
    every: tuple[Life, ...]
    moved: Counter[int]

    @classmethod
    def of(cls, graph: Graph, schedule: Schedule) -> Lives:
        """The lives of a schedule's values. O(steps + edges).

        Raises
        ------
        FormatError : the schedule is for another graph, or breaks a rule.
        """
        judged = simulate(graph, schedule)
        steps = schedule.array
        is_run = steps[:, 0] == RUN
        ops, into = steps[is_run, 1], steps[is_run, 2]
        boundary = forward_end(graph, ops)
        every, away = _lives(graph, schedule, boundary)
        moved = Counter(steps[steps[:, 0] == OFFLOAD, 1].tolist())
        return cls(judged, ops, into, run_memory(steps, judged.memory), away, boundary, every, moved)

    @property
    def peak(self) -> int:
        """Index of the first run that holds most; -1 where nothing runs."""
        return int(self.memory.argmax()) if len(self.ops) else -1


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that are held during the run at the peak.

    op : the op that made them, or whose workspace they are.
    value : the storage; None for workspace, and for what is freed between a fetch that holds more than its run and the run.
    role : the first of these that fits: "workspace" and "running" (of the op that runs), "saved" (made before forward ended,
        held after that), "fetched" (from the host), "recomputed" (made by an op that ran before), "gradient" (made by
        backward), "forward" (made by forward).
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
    moved : value -> how often it is copied to the host. host_bytes : that the host holds of them at most.
    waited : seconds that the step waits for copies.
    """

    bytes: int
    op: int | None
    again: bool
    backward: bool
    held: tuple[Held, ...]
    runs: np.ndarray
    saved: frozenset[int]
    moved: Counter[int] = field(default_factory=Counter)
    host_bytes: int = 0
    waited: float = 0.0


def peak(graph: Graph, schedule: Schedule) -> Peak:
    """The values that a schedule holds at its peak. O(steps + edges). Raises as `Lives.of`."""
    return peak_of(graph, Lives.of(graph, schedule))


def peak_of(graph: Graph, lives: Lives) -> Peak:
    """The peak of a schedule whose lives are known."""
    at, judged = lives.peak, lives.judged
    if at < 0:
        return Peak(judged.peak_bytes, None, False, False, (), judged.runs, frozenset())
    op = int(lives.ops[at])
    waited = judged.seconds - float(judged.runs @ graph.weights("seconds"))
    return Peak(
        judged.peak_bytes, op, again=bool((lives.ops[:at] == op).any()),
        backward=lives.boundary is not None and at > lives.boundary, held=_held(graph, lives, at), runs=judged.runs,
        saved=frozenset(x.value for x in lives.every if x.role == SAVED), moved=lives.moved, host_bytes=judged.host_bytes,
        waited=waited if lives.moved and waited > EPS * judged.seconds else 0.0,
    )  # fmt: skip


def run_memory(steps: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """int64 [runs]: the most bytes in each run and in the fetches right before it. steps : rows of a schedule.

    memory : int64 [steps], as the judge gives it.
    """
    kinds, runs = steps[:, 0], np.flatnonzero(steps[:, 0] == RUN)
    during = np.where((kinds == RUN) | (kinds == FETCH), memory, 0)
    return np.maximum.reduceat(during, np.append(0, runs[:-1] + 1)) if len(runs) else memory[:0]


def forward_end(graph: Graph, ops: np.ndarray) -> int | None:
    """Index of the run with which forward ends: the boundary's, else the first run of backward; None where there is none.

    ops : int64 [runs], the op of each run.
    """
    backward = np.array([o.backward for o in graph.ops], np.bool_)[ops]
    ends = backward if graph.boundary is None else ops == graph.boundary
    return int(ends.argmax()) if ends.any() else None


def is_gradient(graph: Graph, op: int) -> bool:
    """Whether the op makes gradients: it belongs to backward, or hands over those that come back from the loss."""
    return graph.ops[op].backward or op == graph.boundary


def _lives(graph: Graph, schedule: Schedule, boundary: int | None) -> tuple[tuple[Life, ...], np.ndarray]:
    """The lives, and the bytes that are away in each run."""
    size, producer = graph.arrays.bytes.tolist(), graph.arrays.producer.tolist()
    made: list[tuple[int, int, str, int]] = []  # value, op, role unless it is saved, index of the run
    last: dict[int, int] = {}  # position in `made` -> the last run of this life
    live: dict[int, int] = {}  # value -> position in `made`
    ran: set[int] = set()
    copied: set[int] = set()  # values of which the host has a copy
    change = np.zeros(len(schedule.array) + 2, np.int64)  # of the bytes that are away, by run
    run = -1

    def begin(v: int, op: int, role: str) -> None:
        live[v] = len(made)
        made.append((v, op, role, run))
        change[run + 1] -= size[v] if v in copied else 0

    def end(v: int) -> None:
        last[live.pop(v)] = run
        change[run + 1] += size[v] if v in copied else 0

    for kind, i, into in schedule.array.tolist():
        if kind == RUN:
            run += 1
            role = RECOMPUTED if i in ran else GRADIENT if is_gradient(graph, i) else FORWARD
            for v in graph.ops[i].outputs:
                if v not in live:
                    begin(v, i, role)
            ran.add(i)
            if into >= 0:
                end(into)
        elif kind == FREE:
            end(i)
        elif kind == OFFLOAD:
            copied.add(i)
        else:
            begin(i, producer[i], FETCHED)
            copied.discard(i)
    ends = (last.get(k, run + 1) for k in range(len(made)))
    every = tuple(
        Life(v, op, SAVED if boundary is not None and first < boundary < end else role, first, end)
        for (v, op, role, first), end in zip(made, ends, strict=True)
    )
    return every, change.cumsum()[: run + 1]


def _held(graph: Graph, lives: Lives, at: int) -> tuple[Held, ...]:
    """All that is held in the run `at`: its op's first output costs nothing where it takes the storage of another value."""
    op, size = int(lives.ops[at]), graph.arrays.bytes.tolist()
    made = graph.ops[op].outputs[1 if lives.into[at] >= 0 else 0 :]
    held = [Held(size[x.value], x.op, x.value, x.role) for x in lives.every if x.first < at <= x.last]
    held += [Held(size[v], op, v, RUNNING) for v in made]
    held.append(Held(graph.ops[op].workspace, op, None, WORKSPACE))
    left = graph.beside_resident(int(lives.memory[at])) - sum(h.bytes for h in held)
    held.append(Held(left, op, None, FETCHED))
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
        key = h.role, pattern_of(op.module, patterns), does(op), _shape(graph, op, h.value)
        found.setdefault(key, []).append(h.bytes)
    every = [Holder(sum(sizes), len(sizes), *key) for key, sizes in found.items()]
    if graph.resident_bytes:
        every.append(Holder(graph.resident_bytes, 1, RESIDENT, "", "parameters, gradients, buffers, inputs", ""))
    return sorted(every, key=lambda h: -h.bytes)


def _shape(graph: Graph, op: Op, value: int | None) -> str:
    """The shape of a value, as far as the graph says it: of the first output."""
    if value is None:
        return op.shape
    place = op.outputs.index(value)
    return op.shape if place == 0 else f"(output {place + 1})"
