"""The judge: the exact peak, the memory at each step and the cost of a schedule.

Every solver, report, certificate and test uses `simulate`. `tests/support/plain_judge.py` says the same in plain Python, to be
read and to be tested against.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..errors import FormatError, UsageError
from ..kernels import judge as _judge
from ..printed import name
from .graph import Graph
from .schedule import FETCH, OFFLOAD, RUN, Schedule


@dataclass(frozen=True)
class Simulation:
    """Peak memory and cost of a schedule, as the judge (`simulate`) computes them.

    peak_bytes : the most memory held during any run or fetch, resident bytes included.
    peak_step : index of the step where it is held.
    memory : int64 [steps], bytes during each run and after each other step, resident bytes included.
    runs : int64 [ops], how often each op runs.
    seconds, flops : sums over runs; where values are copied to the host, `seconds` also counts what the step waits for copies.
    overhead, flops_overhead : extra cost over running each needed op once, as a fraction.
    begins : float64 [steps], the second at which each step begins, where values are copied to the host; else None.
    host_bytes : the most that the host holds of the device's values.
    moved_bytes : of all copies to the host together.
    """

    peak_bytes: int
    peak_step: int
    memory: np.ndarray
    runs: np.ndarray
    seconds: float
    flops: int
    overhead: float
    flops_overhead: float
    begins: np.ndarray | None = None
    host_bytes: int = 0
    moved_bytes: int = 0


def simulate(graph: Graph, schedule: Schedule, cost: str = "seconds") -> Simulation:
    """Judge a schedule. `overhead` is in the unit `cost` ("seconds", "flops" or "unit"). O(steps + edges).

    Rules: before a run all its inputs are live or resident. During it, memory is resident + live + all its outputs +
    workspace, where `into` v makes the first output cost nothing and ends v. An output that was already live costs its
    bytes during the run, and the copy is dropped after it. `keep` must be live at the end.

    An offloaded value takes its bytes until it is freed, and again from the step that fetches it. Memory follows from the order
    of the steps alone, however long copies take: who needs room waits until a copy has ended (see `kernels.judge.clock`).

    Raises
    ------
    FormatError : the schedule is for another graph, or breaks a rule; the message names the step. Also where it copies values
        to the host and the graph has no `link`.
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
    runs = steps[:, 0] == RUN
    for ids, limit, what in (
        (steps[runs, 1], len(graph.ops), "an op"),
        (steps[~runs, 1], len(graph.values), "a value"),
    ):
        if len(ids) and not (ids.min() >= 0 and ids.max() < limit):
            raise FormatError(f"the schedule names {what} that the graph does not have")
    if len(steps) and not (steps[:, 2].min() >= -1 and steps[:, 2].max() < len(graph.values)):
        raise FormatError("the schedule writes into a value that the graph does not have")
    status, step, detail, memory, runs, host = _judge.judge(steps, graph.arrays)
    if status != _judge.OK:
        raise FormatError(_explain(graph, status, int(step), int(detail)))
    found = _totals(graph, steps, memory, runs, cost)
    return _beside_copies(graph, schedule, found, host, cost) if schedule.moves else found


def _beside_copies(graph: Graph, schedule: Schedule, found: Simulation, host: np.ndarray, cost: str) -> Simulation:
    """The same with the seconds that the step waits for copies."""
    if graph.link is None:
        raise FormatError(
            f"the schedule copies values to the host, and graph {name(graph.name)!r} does not say how long a copy takes; give "
            "the graph a link, or plan with offload=True on the device"
        )
    weights, steps = graph.weights("seconds"), schedule.array
    begins, end = _judge.clock(steps, weights, graph.link.rates, graph.arrays)
    once = float(weights[graph.needed].sum())
    return replace(
        found,
        seconds=float(end),
        overhead=found.overhead if cost != "seconds" or once <= 0 else float(end) / once - 1,
        begins=begins,
        host_bytes=int(host.max()),
        moved_bytes=int(graph.arrays.bytes[steps[steps[:, 0] == OFFLOAD, 1]].sum()),
    )


def _totals(graph: Graph, steps: np.ndarray, memory: np.ndarray, runs: np.ndarray, cost: str) -> Simulation:
    during = np.where((steps[:, 0] == RUN) | (steps[:, 0] == FETCH), memory, -1)
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
        _judge.NOT_THERE: f"copies value {detail} to the host, which is not live there, an input, or on the host",
        _judge.NOT_AWAY: f"fetches value {detail}, of which the host has no copy, or which is live there",
    }[status]
    return f"invalid schedule for graph {name(graph.name)!r}: step {step} {what}"
