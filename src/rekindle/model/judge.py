"""The judge: the exact peak, the memory at each step and the cost of a schedule.

Every solver, report, certificate and test uses `simulate`. `simulate_plain` says the same in
plain Python, to be read and to be tested against.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import FormatError, UsageError
from ..kernels import judge as _judge
from ..printed import name
from .graph import Graph
from .schedule import FREE, RUN, Free, Run, Schedule


@dataclass(frozen=True)
class Simulation:
    """Peak memory and cost of a schedule, as the judge (`simulate`) computes them.

    peak_bytes : the most memory held during any run, resident bytes included.
    peak_step : index of the step where it is held.
    memory : int64 [steps], bytes during each run and after each free, resident bytes included.
    runs : int64 [ops], how often each op runs.
    seconds, flops : sums over runs.
    overhead, flops_overhead : extra cost over running each needed op once, as a fraction.
    """

    peak_bytes: int
    peak_step: int
    memory: np.ndarray
    runs: np.ndarray
    seconds: float
    flops: int
    overhead: float
    flops_overhead: float


def simulate(graph: Graph, schedule: Schedule, cost: str = "seconds") -> Simulation:
    """Judge a schedule. `overhead` is in the unit `cost` ("seconds", "flops" or "unit"). O(steps + edges).

    Rules: before a run all its inputs are live or resident. During it, memory is resident + live + all its outputs +
    workspace, where `into` v makes the first output cost nothing and ends v. An output that was already live costs its
    bytes during the run, and the copy is dropped after it. `keep` must be live at the end.

    Raises
    ------
    FormatError : the schedule is for another graph, or breaks a rule; the message names the step.
    UsageError : it is no Graph or no Schedule, or an unknown cost.
    """
    if not isinstance(graph, Graph) or not isinstance(schedule, Schedule):
        raise UsageError(
            f"simulate takes a Graph and a Schedule, not {type(graph).__name__} and {type(schedule).__name__}; a Trace and a "
            "Plan have them as .graph and .schedule"
        )
    if schedule.graph_hash != graph.hash:
        raise FormatError(
            f"the schedule is for graph {name(schedule.graph_hash[:12])}, but this is graph {graph.hash[:12]}; "
            "solve the graph again"
        )
    steps = schedule.array
    for kind, limit in ((RUN, len(graph.ops)), (FREE, len(graph.values))):
        ids = steps[steps[:, 0] == kind, 1]
        if len(ids) and not (ids.min() >= 0 and ids.max() < limit):
            raise FormatError(
                f"the schedule names {'an op' if kind == RUN else 'a value'} that the graph does not have"
            )
    if len(steps) and not (steps[:, 2].min() >= -1 and steps[:, 2].max() < len(graph.values)):
        raise FormatError("the schedule writes into a value that the graph does not have")
    status, step, detail, memory, runs = _judge.judge(steps, graph.arrays)
    if status != _judge.OK:
        raise FormatError(_explain(graph, status, int(step), int(detail)))
    return _totals(graph, steps, memory, runs, cost)


def _totals(graph: Graph, steps: np.ndarray, memory: np.ndarray, runs: np.ndarray, cost: str) -> Simulation:
    during = np.where(steps[:, 0] == RUN, memory, -1)
    at = int(during.argmax()) if len(during) else -1
    flops = graph.weights("flops")
    return Simulation(
        peak_bytes=graph.with_resident(int(during[at]) if at >= 0 else 0),
        peak_step=at,
        memory=graph.with_resident(memory),
        runs=runs,
        seconds=float(runs @ graph.weights("seconds")),
        flops=int(runs @ flops),
        overhead=_overhead(graph, runs, graph.weights(cost)),
        flops_overhead=_overhead(graph, runs, flops),
    )


def _overhead(graph: Graph, runs: np.ndarray, weights: np.ndarray) -> float:
    once = float(weights[graph.needed].sum())
    return float(runs @ weights) / once - 1 if once > 0 else 0.0


def plain_activation_bytes(graph: Graph) -> int:
    """The activation peak of a step that runs each op once."""
    return graph.beside_resident(simulate(graph, Schedule.baseline(graph)).peak_bytes)


def _explain(graph: Graph, status: int, step: int, detail: int) -> str:
    what = {
        _judge.DEAD_INPUT: f"reads value {detail}, which is not live there",
        _judge.RAN_TWICE: "runs an op a second time that must run only once",
        _judge.FREE_DEAD: f"frees value {detail}, which is not live there (or is an input, held by the caller)",
        _judge.BAD_INTO: f"writes into value {detail}, which the op may not overwrite there",
        _judge.LOST_KEEP: f"ends without value {detail}, which must be kept",
    }[status]
    return f"invalid schedule for graph {name(graph.name)!r}: step {step} {what}"


def simulate_plain(graph: Graph, schedule: Schedule) -> tuple[int, float]:
    """(peak bytes, seconds) by the rules of `simulate`, in plain Python; the readable twin of the compiled judge."""
    produced = {v for op in graph.ops for v in op.outputs}
    live: set[int] = set()
    ran: set[int] = set()
    peak, seconds = graph.resident_bytes, 0.0

    def held() -> int:
        return graph.with_resident(sum(graph.values[v].bytes for v in live))

    for step in schedule.steps:
        if isinstance(step, Free):
            if step.value not in live:
                raise FormatError(f"frees {step.value}, which is not live")
            live.remove(step.value)
            continue
        assert isinstance(step, Run)
        op = graph.ops[step.op]
        if step.op in ran and not op.recompute:
            raise FormatError(f"op {step.op} runs twice")
        ran.add(step.op)
        for v in op.inputs:
            if v in produced and v not in live:
                raise FormatError(f"reads {v}, which is not live")
        costing = op.outputs
        if step.into is not None:
            if step.into not in op.inplace or step.into not in live:
                raise FormatError(f"cannot write into {step.into}")
            if graph.values[op.outputs[0]].bytes > graph.values[step.into].bytes:
                raise FormatError(f"value {step.into} is too small to write into")
            costing = op.outputs[1:]
        peak = max(peak, held() + sum(graph.values[v].bytes for v in costing) + op.workspace)
        seconds += op.seconds
        live |= set(op.outputs)
        live.discard(-1 if step.into is None else step.into)
    if any(v in produced and v not in live for v in graph.keep):
        raise FormatError("a value to keep is not live at the end")
    return peak, seconds
