"""Seconds, FLOPs and workspace of each operator of a captured graph.

They are measured if the operators' device is present: every distinct call runs on made-up tensors of the right shape
(`clock`). If it is absent they are estimated by the roofline (`devices`), without workspace.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ..capture.private import is_fake
from . import devices
from .cache import CostCache, environment
from .clock import Measured, measure_cpu, measure_cuda
from .made_up import at_hand, undisturbed
from .operator_calls import OperatorCall, call_of


@dataclass(frozen=True)
class Cost:
    """The cost of one call. flops : as `flops.op_flops` counts. workspace : bytes it needs beside inputs and outputs."""

    seconds: float
    flops: int
    workspace: int


def node_costs(
    nodes: Iterable[Node],
    *,
    target: str | None = None,
    measure: bool | None = None,
    limit_s: float = 8.0,
    progress: Callable[[str], None] | None = None,
) -> list[Cost]:
    """The cost of each call_function node of a captured graph, whose metas hold fake tensors.

    Views, getitems and nodes that are no operator cost nothing. A call that cannot be measured (its run fails, its device is
    absent, no time is left) gets its roofline, scaled by the ratio that the measured operators had.

    target : a name in `devices`: the roofline on that device; nothing runs.
    measure : False: the roofline on the nodes' own device. None: measured, unless a target is given or a FakeTensorMode
        is on. True: measured under a FakeTensorMode too, which is switched off meanwhile.
    limit_s : seconds after which no further operator is measured.
    progress : called with one line of text now and then.

    Raises
    ------
    UsageError : unknown target.
    """
    named = None if target is None else devices.get(target)
    distinct: dict[Any, OperatorCall] = {}
    per_node: list[OperatorCall | None] = []
    for node in nodes:
        call = call_of(node, named)
        per_node.append(call if call is None else distinct.setdefault(call.key or node, call))
    calls = list(distinct.values())
    if measure is None:
        measure = not is_fake(torch.empty(0))
    costs: dict[OperatorCall, Cost] = {}
    for device_type in sorted({c.device.type for c in calls}):
        group = [c for c in calls if c.device.type == device_type]
        wanted = measure and named is None and at_hand(group[0].device)
        found = _cached_or_measured(group, limit_s, progress) if wanted else Measured()
        costs |= _filled_in(group, found)
    nothing = Cost(0.0, 0, 0)
    return [nothing if call is None else costs[call] for call in per_node]


# Costs that this process has measured, steady or not: asking again must not measure again.
_SESSION: dict[tuple[str, str], tuple[float, int]] = {}
_PASSED_OVER: set[tuple[str, str]] = (
    set()
)  # calls that this process had no time for or could not run: estimated from then on


def _cached_or_measured(
    calls: Sequence[OperatorCall], limit_s: float, progress: Callable[[str], None] | None
) -> Measured:
    """Costs of calls on one kind of device, from the disk or measured now, the largest roofline first."""
    found = Measured()
    cache = CostCache(environment(calls[0].device))
    todo = []
    for call in sorted(calls, key=lambda c: -c.roofline):
        kept = None if call.key is None else cache.get(call.key) or _SESSION.get((cache.environment, call.key))
        if kept is not None:
            found.seconds[call], found.workspace[call] = kept
        elif call.key is not None and (cache.environment, call.key) not in _PASSED_OVER:
            todo.append(call)
    if todo:
        if progress is not None:
            progress(f"measuring {len(todo)} operators ({len(calls) - len(todo)} known)")
        run = measure_cuda if calls[0].device.type == "cuda" else measure_cpu
        with undisturbed(todo):
            run(todo, found, limit_s)
        for call in todo:
            if call not in found.workspace:
                _PASSED_OVER.add((cache.environment, str(call.key)))
                continue
            seconds = found.seconds[call]
            assert call.key is not None
            _SESSION[cache.environment, call.key] = (seconds, found.workspace[call])
            if call in found.settled:
                cache.put(call.key, seconds, found.workspace[call])
        cache.save()
    return found


def _filled_in(calls: Sequence[OperatorCall], found: Measured) -> dict[OperatorCall, Cost]:
    """A cost for every call, measured or estimated.

    Estimated seconds are the roofline times the median ratio of measured to roofline seconds, of the same operator or, if it
    has none, of all. Estimated workspace comes from the measured call of the same operator that is nearest in size, scaled
    by the bytes of the output.
    """
    ratios: dict[Any, list[float]] = {}
    known: dict[Any, list[OperatorCall]] = {}
    for call, seconds in found.seconds.items():
        for kind in (call.target, None):
            ratios.setdefault(kind, []).append(seconds / call.roofline)
    for call in found.workspace:
        if call.out_bytes > 0:
            known.setdefault(call.target, []).append(call)
    scales = {kind: statistics.median(r) for kind, r in ratios.items()}

    def seconds_of(call: OperatorCall) -> float:
        measured = found.seconds.get(call)
        return call.roofline * scales.get(call.target, scales.get(None, 1.0)) if measured is None else measured

    def workspace_of(call: OperatorCall) -> int:
        if call in found.workspace:
            return found.workspace[call]
        like = known.get(call.target)
        if not like or not call.out_bytes:
            return 0
        near = min(like, key=lambda c: abs(math.log(c.out_bytes / call.out_bytes)))
        return math.ceil(found.workspace[near] * call.out_bytes / near.out_bytes)

    return {c: Cost(seconds_of(c), c.flops, workspace_of(c)) for c in calls}
