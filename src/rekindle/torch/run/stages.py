"""Cuts the backward into few stages: finished gradients wait for each other as long as waiting costs no memory.

A gradient is handed over only after the last op that reads its tensor's memory: hooks of autograd may write to the tensor then,
as an optimizer does that steps inside backward.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from ...model.graph import ACCUMULATE, OPERATOR, Graph
from ...model.judge import simulate
from ...model.schedule import RUN, Schedule
from ..lowering.gradient_additions import additions, unaliased
from ..lowering.lowered import Lowered
from ..operators.node_tensors import overlap
from .halves import placeholders_read
from .results import handed_over

# Gradients that wait hold at most 1 / STAGES_LEAST of all gradient bytes, so that data-parallel communication starts early. A
# guess.
STAGES_LEAST = 8


def finish(low: Lowered) -> Callable[[Graph, Schedule], Schedule]:
    """The function that turns a schedule of this graph, or of one with the same ops, into the schedule that is run."""
    last_reads = LastReads(low)
    return lambda graph, schedule: group(graph, last_reads.heeded(graph, schedule))


class LastReads:
    """The ops that read the memory of each tensor that gets a gradient: itself, or another tensor that shares it."""

    def __init__(self, low: Lowered):
        self._calls, self._gradients = low.calls, low.captured.gradients
        self._additions = additions(low.captured)
        self._made_by = {c.node: o for o, c in enumerate(low.calls) if c.node is not None and c.kind == OPERATOR}
        readers: dict[fx.Node, list[int]] = {}
        for o in self._made_by.values():
            for p in {p for p, _ in placeholders_read(low, o)}:
                readers.setdefault(p, []).append(o)
        self._readers = {
            o: [r for p in sharing_memory(low, c.node) for r in readers.get(p, ())]
            for o, c in enumerate(low.calls) if c.kind == ACCUMULATE and c.node is not None
        }  # fmt: skip

    def heeded(self, graph: Graph, schedule: Schedule) -> Schedule:
        """The schedule with every gradient handed over after the last read of its tensor's memory; itself if it is so already.

        O(steps + readers).
        """
        runs = schedule.runs
        last = {o: i for i, o in enumerate(runs)}
        in_parts = handed_over(self._additions, [n for o in runs if (n := self._calls[o].node) in self._made_by])
        late: dict[int, int] = {}  # op that hands over -> position of the run that it must follow
        for o, readers in self._readers.items():
            after = max((last[r] for r in readers if r in last), default=-1)
            gradient = unaliased(self._gradients[self._calls[o].node])  # type: ignore[index]
            # An addition whose parts go to autograd one by one hands over the last part.
            late |= {
                x: after for x in ([self._made_by[gradient], o] if gradient in in_parts else [o]) if last[x] < after
            }
        if not late:
            return schedule
        order = sorted(range(len(runs)), key=lambda i: (late.get(runs[i], i), runs[i] in late))
        return Schedule.from_runs(graph, [runs[i] for i in order], schedule.solver)


def sharing_memory(low: Lowered, p: fx.Node) -> list[fx.Node]:
    """The inputs of the step that use memory of this one, itself among them."""
    others = [q for q, _ in low.parts[low.value_of[(p, 0)]] if q is not p]
    return [p, *(q for q in others if overlap(p.meta["val"], q.meta["val"]))]


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
    most = sum(gradient.values()) // STAGES_LEAST
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
