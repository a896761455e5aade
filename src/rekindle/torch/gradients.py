"""Says which gradients a plan counts, where another choice of `gradients` would need less memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import InfeasibleBudget
from ..model.judge import simulate
from ..model.plan import Plan
from ..model.schedule import Schedule
from ..sizes import format_bytes
from .trace import Trace

SAID_FROM_SHARE = 0.01  # of the peak: a smaller saving is not said. A guess


def planned(traced: Trace, make: Callable[[], Plan]) -> Plan:
    """The plan of a budget in bytes, whose trace says what another choice of `gradients` would save with the same schedule.

    Raises
    ------
    InfeasibleBudget : as `make`; the message says how many bytes of gradients count from the start of the step.
    """
    if traced.options.gradients != "kept":
        return make()
    try:
        plan = make()
    except InfeasibleBudget as e:
        e.args = (
            f"{e}. {format_bytes(traced.gradient_bytes)} of gradients count from the start of the step; if the loop sets them "
            'to None before each step, gradients="fresh" counts each one from when it is made',
        )
        raise
    words, peak = [], plan.peak_bytes
    for how in ("fresh", "consumed"):
        other = _peak(plan, how)
        if peak - other >= SAID_FROM_SHARE * plan.peak_bytes:
            words.append(f'gradients="{how}" would take {format_bytes(plan.peak_bytes - other)} less')
            peak = other
    return replace(plan, trace=replace(plan.trace, saved=", ".join(words)))


def _peak(plan: Plan, gradients: str) -> int:
    graph = plan.trace.with_gradients(gradients).graph
    return simulate(graph, Schedule.from_runs(graph, plan.schedule.runs, plan.schedule.solver)).peak_bytes
