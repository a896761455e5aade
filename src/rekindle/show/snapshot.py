"""The predicted memory of a step in the format of PyTorch's memory snapshots, for pytorch.org/memory_viz.

The format is a pickle file. Rekindle writes it, since that page reads nothing else, and never reads one.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np

from ..arguments import file_name
from ..model.arena import ALIGNMENT
from ..model.files import check_writable, write_bytes
from ..model.graph import Graph, Op
from ..model.judge import simulate
from ..model.op_names import op_words
from ..model.plan import Plan
from ..model.schedule import RUN
from .svg import TimeAxis

BASE = 0x7F0000000000  # the address at which the step's memory begins, as on a GPU
PROTOCOL = 4  # what PyTorch's page can read
RESIDENT = "held during the whole step: parameters, gradients, buffers, inputs, counted optimizer state"


def write_snapshot(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the snapshot of a plan to a pickle file, whole or not at all.

    Raises
    ------
    UsageError : `path` is no path or cannot be written.
    RekindleError : the disk is full or fails.
    """
    check_writable(file_name(path))
    write_bytes(path, pickle.dumps(snapshot(plan), PROTOCOL))


def snapshot(plan: Plan) -> dict[str, Any]:
    """Allocations and frees of one device in order, as `torch.cuda.memory._snapshot` gives them.

    The bytes allocated at any moment are the judge's, so their maximum is `plan.peak_bytes`. Addresses are `plan.arena`'s.
    """
    graph, arena = plan.graph, plan.arena
    rows = plan.schedule.array
    top = BASE + -(-graph.resident_bytes // ALIGNMENT) * ALIGNMENT  # the bytes that are held all step come first
    frames = _Frames(graph, plan)
    some = np.flatnonzero(arena.bytes)
    begins, ends = (_by_step(x, some, len(rows)) for x in (arena.first, arena.last))
    left = {i for i in _at(ends, len(rows) - 1) if arena.value[i] >= 0}  # live when the step ends
    trace: list[dict[str, Any]] = []
    held: dict[int, dict[str, Any]] = {}

    def note(action: str, life: int, step: int) -> None:
        entry = {
            "action": action, "addr": top + int(arena.offsets[life]), "size": int(arena.bytes[life]), "stream": 0,
            "time_us": frames.moments[step], "frames": held[life]["frames"] if life in held else frames.of(step),
        }  # fmt: skip
        if action == "alloc":
            held[life] = entry
        trace.append(entry)

    if graph.resident_bytes:
        trace.append(_resident(graph))
    for step in range(len(rows)):
        for life in _at(begins, step):
            note("alloc", life, step)
        for life in _at(ends, step):
            if life not in left:
                note("free_requested", life, step)
                note("free_completed", life, step)
                del held[life]
    size = top - BASE + int(arena.arena_bytes)
    return {"segments": [_segment(graph, [*held.values()], size)], "device_traces": [trace], "allocator_settings": {}}


class _Frames:
    """The stack that the page shows for an allocation: the op that makes it. moments : microseconds at which a step begins."""

    def __init__(self, graph: Graph, plan: Plan):
        self._graph, self._rows = graph, plan.schedule.array
        time = TimeAxis.of(graph, plan.cost)
        is_run = self._rows[:, 0] == RUN
        taken = np.where(is_run, time.weights[np.where(is_run, self._rows[:, 1], 0)], 0.0)
        begins = simulate(graph, plan.schedule).begins if time.unit == "seconds" else None
        if begins is None:
            begins = np.concatenate([[0.0], np.cumsum(taken)[:-1]])
        scale = 1e6 if time.unit == "seconds" else 1.0 / max(1.0, float(taken.max(initial=0.0)) / 1e3)
        self.moments: list[int] = (np.maximum.accumulate(begins) * scale).astype(np.int64).tolist()

    def of(self, step: int) -> list[dict[str, Any]]:
        kind, i, _ = self._rows[step].tolist()
        if kind == RUN:
            return [_frame(self._graph.ops[i])]
        made = _frame(self._graph.ops[int(self._graph.arrays.producer[i])])
        return [made | {"name": f"fetched from the host: {made['name']}"}]


def _frame(op: Op) -> dict[str, Any]:
    file, _, line = op.source.rpartition(":")
    return {"name": op_words(op), "filename": file or "step", "line": int(line) if line.isdigit() else 0}


def _resident(graph: Graph) -> dict[str, Any]:
    frames = [{"name": RESIDENT, "filename": "step", "line": 0}]
    return {"action": "alloc", "addr": BASE, "size": graph.resident_bytes, "stream": 0, "time_us": 0, "frames": frames}


def _by_step(steps: np.ndarray, lives: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(order, starts): the given lives in order of their steps, and where each step's lives begin in that order."""
    order = lives[np.argsort(steps[lives], kind="stable")]
    return order, np.searchsorted(steps[order], np.arange(count + 1))


def _at(by_step: tuple[np.ndarray, np.ndarray], step: int) -> list[int]:
    order, starts = by_step
    found: list[int] = order[starts[step] : starts[step + 1]].tolist() if 0 <= step < len(starts) - 1 else []
    return found


def _segment(graph: Graph, held: list[dict[str, Any]], size: int) -> dict[str, Any]:
    """The one segment that holds everything, as it is when the step ends."""
    left = sorted([*([_resident(graph)] if graph.resident_bytes else []), *held], key=lambda e: e["addr"])
    blocks: list[dict[str, Any]] = []
    at = BASE
    for e in left:
        if e["addr"] > at:
            blocks.append(
                {"address": at, "size": e["addr"] - at, "requested_size": 0, "state": "inactive", "frames": []}
            )
        blocks.append({
            "address": e["addr"], "size": e["size"], "requested_size": e["size"], "state": "active_allocated",
            "frames": e["frames"],
        })  # fmt: skip
        at = e["addr"] + e["size"]
    if at < BASE + size:
        blocks.append({"address": at, "size": BASE + size - at, "requested_size": 0, "state": "inactive", "frames": []})
    live = sum(b["size"] for b in blocks if b["state"] == "active_allocated")
    return {
        "device": 0, "address": BASE, "total_size": size, "allocated_size": live, "active_size": live, "requested_size": live,
        "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip
