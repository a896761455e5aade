"""Cuts the backward into few stages: finished gradients wait for each other as long as waiting costs no memory."""

from __future__ import annotations

from dataclasses import dataclass

from ...model.graph import ACCUMULATE, Graph
from ...model.judge import simulate
from ...model.schedule import RUN, Schedule


@dataclass(frozen=True)
class StageSettings:
    """How long finished gradients may wait.

    stages_least : waiting gradients hold at most 1 / stages_least of all gradient bytes, so that data-parallel communication
        starts early. A guess.
    """

    stages_least: int = 8


SETTINGS = StageSettings()


def group(graph: Graph, schedule: Schedule) -> Schedule:
    """The same runs with neighbouring hand-overs (`accumulate` ops) put together, so that a step has few stages.

    A gradient waits while the memory it holds keeps every later run within the schedule's own peak, and while what
    waits is at most an eighth of all gradients: so a second copy of all gradients never exists, and data-parallel
    communication starts early. O(steps).
    """
    runs = schedule.runs
    waits = {i for i, op in enumerate(graph.ops) if op.kind == ACCUMULATE}
    if not waits:
        return schedule
    judged = simulate(graph, schedule)
    size = graph.arrays.bytes
    gradient = {i: sum(int(size[v]) for v in graph.ops[i].inputs if not graph.arrays.keep[v]) for i in waits}
    most = sum(gradient.values()) // SETTINGS.stages_least
    during = judged.memory[schedule.array[:, 0] == RUN].tolist()
    out: list[int] = []
    waiting: list[int] = []
    held = 0
    for memory, op in zip(during, runs, strict=True):
        if op in waits:
            waiting.append(op)
            held += gradient[op]
            if held > most:
                out += waiting
                waiting, held = [], 0
            continue
        if waiting and memory + held > judged.peak_bytes:
            out += waiting
            waiting, held = [], 0
        out.append(op)
    grouped = Schedule.from_runs(graph, out + waiting, schedule.solver)
    # An input overwritten in place may have become a waiting gradient: the judge decides.
    return grouped if simulate(graph, grouped).peak_bytes <= judged.peak_bytes else schedule
