"""Seconds, FLOPs and workspace of each operator of a captured graph.

They are measured if the operators' device is present: distinct calls run on made-up tensors of the right shape (`clock`), and
are kept on disk (`cache`). A call that was not measured gets the roofline that was fitted to the others (`fits`). If the device
is absent, all costs are the roofline (`devices`), without workspace but for operators of this package, which know theirs. Of a
distributed run, one process measures for all, so that costs never lead to different plans.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from ...errors import FormatError
from ...model.graph import Graph
from ..operators.record import workspace_bytes
from ..private import is_fake
from ..tensors import ranks
from . import devices
from .cache import CostCache, Measurement, environment
from .clock import Measured, measure_cuda
from .clock_cpu import measure_cpu
from .fits import Fits
from .made_up import at_hand, undisturbed
from .operator_calls import OperatorCall, call_of


@dataclass(frozen=True)
class Cost:
    """The cost of one call. flops : as `op_flops` counts. workspace : bytes it needs beside inputs and outputs."""

    seconds: float
    flops: int
    workspace: int


def node_costs(
    nodes: Iterable[Node],
    *,
    target: str | None = None,
    measure: bool | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Cost]:
    """The cost of each call_function node of a captured graph, whose metas hold fake tensors.

    Views, getitems and nodes that are no operator cost nothing. Calls are measured once: asking again, in this process or
    in another one that reads the same cache, gives the same costs to the bit.

    target : a name in `devices`: the roofline on that device; nothing runs.
    measure : False: nothing runs, and no time is spent: known calls cost as measured, and others the roofline on the nodes'
        own device, fitted to all that was measured in this environment. None: measured, unless a target is given or a
        FakeTensorMode is on, under which all costs are the plain roofline. True: measured under a FakeTensorMode too, which is
        switched off meanwhile.
    progress : called with one line of text now and then.

    Raises
    ------
    UsageError : unknown target.
    """
    if measure is None and target is None and is_fake(torch.empty(0)):
        return modelled_costs(nodes)
    if target is not None:
        return modelled_costs(nodes, target)
    per_node, counts = _distinct(nodes, None)
    costs: dict[OperatorCall, Cost] = {}
    for device_type in sorted({c.device.type for c in counts}):
        group = [c for c in counts if c.device.type == device_type]
        if not at_hand(group[0].device):
            costs |= {c: _modelled(c) for c in group}
        elif measure is False:
            costs |= _costs(group, _Known(group[0].device).all)
        else:
            costs |= _costs(group, _measured(group, counts, progress))
    return _in_order(per_node, costs)


def modelled_costs(nodes: Iterable[Node], target: str | None = None) -> list[Cost]:
    """The roofline of each node, as `node_costs`, on the device called `target` or on the node's own; nothing runs.

    Raises
    ------
    UsageError : unknown target.
    """
    per_node, counts = _distinct(nodes, None if target is None else devices.get(target))
    return _in_order(per_node, {c: _modelled(c) for c in counts})


def known_workspaces(nodes: Iterable[Node]) -> list[int]:
    """Bytes of workspace of each node, none of them guessed: those that are not known are measured now, and count as 0 where
    that fails."""
    per_node, counts = _distinct(nodes, None)
    found: dict[OperatorCall, int | None] = {c: workspace_bytes(c.target, c.args, c.kwargs) for c in counts}
    for device_type in sorted({c.device.type for c in counts}):
        group = [c for c in counts if c.device.type == device_type and c.key is not None and found[c] is None]
        if not group or not at_hand(group[0].device):
            continue
        known = _Known(group[0].device)
        for c in group:
            assert c.key is not None
            kept = None if (m := known.get(c.key)) is None else m.workspace
            found[c] = _LATER.get((known.environment, c.key)) if kept is None else kept
        if todo := [c for c in group if found[c] is None]:
            ran = _run(todo, Counter()).workspace  # of calls that no step counts, no time is measured
            found |= {c: ran.get(c, 0) for c in todo}
            _LATER.update({(known.environment, str(c.key)): ran.get(c, 0) for c in todo})
    return [0 if call is None else found[call] or 0 for call in per_node]


def _modelled(call: OperatorCall) -> Cost:
    """The roofline; the workspace of ATen's operators is not modelled and counts as 0."""
    return Cost(call.roofline, call.flops, workspace_bytes(call.target, call.args, call.kwargs) or 0)


def _distinct(
    nodes: Iterable[Node], named: devices.Device | None
) -> tuple[list[OperatorCall | None], Counter[OperatorCall]]:
    """The call of each node, equal ones by the same object, and how often each occurs."""
    distinct: dict[Any, OperatorCall] = {}
    per_node: list[OperatorCall | None] = []
    for node in nodes:
        call = call_of(node, named)
        per_node.append(call if call is None else distinct.setdefault(call.key or node, call))
    return per_node, Counter(call for call in per_node if call is not None)


def _in_order(per_node: Sequence[OperatorCall | None], costs: Mapping[OperatorCall, Cost]) -> list[Cost]:
    nothing = Cost(0.0, 0, 0)
    return [nothing if call is None else costs[call] for call in per_node]


# Measurements that this process has made or used: asking again must not measure again where nothing can be stored.
_SESSION: dict[tuple[str, str], Measurement] = {}
# Workspaces that `known_workspaces` measured of calls whose costs were settled without: those costs stay as they were given.
_LATER: dict[tuple[str, str], int] = {}


class _Known:
    """The measurements of one environment, on disk and in this process."""

    def __init__(self, device: torch.device) -> None:
        self.environment = environment(device)
        self.cache = CostCache(self.environment)

    def get(self, key: str) -> Measurement | None:
        kept = self.cache.get(key)
        if kept is None:
            kept = _SESSION.get((self.environment, key))
            if kept is not None and _is_complete(kept):
                self.cache.put(key, kept)  # it could not be stored when it was made
        return kept

    def put(self, measured: Mapping[str, Measurement]) -> dict[str, Measurement]:
        """Keep measurements; those that another process stored first take their place, and are returned."""
        for key, m in measured.items():
            if _is_complete(m):
                self.cache.put(key, m)
        self.cache.save()
        now = {key: self.cache.get(key) or m for key, m in measured.items()}
        for key, m in now.items():
            _SESSION[self.environment, key] = m
        return now

    @property
    def all(self) -> dict[str, Measurement]:
        own = {key: m for (environment, key), m in _SESSION.items() if environment == self.environment}
        return own | dict(self.cache.known)


def _is_complete(m: Measurement) -> bool:
    """Whether no second attempt would tell more: a call that ran while no memory could be recorded lacks its workspace."""
    return m.seconds is None or m.workspace is not None


def _measured(
    calls: Sequence[OperatorCall], counts: Mapping[OperatorCall, int], progress: Callable[[str], None] | None
) -> dict[str, Measurement]:
    """Measurements of calls on one kind of device by key, known before or made now."""
    known = _Known(calls[0].device)
    found = {call.key: m for call in calls if call.key is not None and (m := known.get(call.key)) is not None}
    todo = [call for call in calls if call.key is not None and call.key not in found]
    new: dict[str, Measurement] = {}
    if todo:
        if progress is not None:
            progress(f"measuring {len(todo)} operators ({len(calls) - len(todo)} known)")
        made = _run(todo, counts)
        for call in todo:
            assert call.key is not None
            ran = call in made.rounds
            new[call.key] = Measurement(
                made.seconds(call) if ran else None,
                made.spread(call) if ran else 0.0,
                made.workspace.get(call),
                call.roofline,
                call.bytes_moved,
            )
    return found | known.put(new)


def _run(todo: Sequence[OperatorCall], counts: Mapping[OperatorCall, int]) -> Measured:
    """The measurements of calls on one kind of device."""
    run, made = measure_cuda if todo[0].device.type == "cuda" else measure_cpu, Measured()
    with undisturbed(todo):
        run(todo, counts, made)
    return made


def _costs(calls: Sequence[OperatorCall], known: Mapping[str, Measurement]) -> dict[OperatorCall, Cost]:
    """A cost for every call: as measured, less what is likely noise, or from the fits to all known measurements."""
    fits = Fits(known)

    def cost(call: OperatorCall) -> Cost:
        op, m = str(call.target), None if call.key is None else known.get(call.key)
        timed = m is not None and m.seconds is not None
        seconds = fits.smoothed(op, m) if m is not None and timed else fits.predicted(op, call.roofline)
        held = None if m is None else m.workspace
        if held is None:
            held = workspace_bytes(call.target, call.args, call.kwargs)
        if held is None:
            held = 0 if call.key is None else fits.workspace(call.key, call.bytes_moved)
        return Cost(seconds, call.flops, held)

    return {call: cost(call) for call in calls}


Costs = list[tuple[float, int, int]]  # seconds, FLOPs and bytes of workspace of each op


def costs_for_all(
    graph: Graph, count: int, where: str, make: Callable[[], Costs], progress: Callable[[str], None] | None
) -> Costs:
    """Measured costs of `count` ops of a graph, from the one process that measures them.

    where : the devices, versions and settings on which costs depend; processes that differ in them measure on their own.
    """
    question = {"graph_hash": graph.hash, "environment": where}
    found = ranks.once("the measured costs of operators", question, make, lambda costs: costs, progress)
    if isinstance(found, ranks.Received):
        return costs_from_json(found.answer, count, "costs that another process measured")
    return found


def with_costs(graph: Graph, at: Sequence[int], costs: Costs) -> Graph:
    """The graph with these costs of the ops `at`."""
    ops = list(graph.ops)
    for i, (seconds, flops, workspace) in zip(at, costs, strict=True):
        ops[i] = replace(ops[i], seconds=seconds, flops=flops, workspace=workspace)
    return replace(graph, ops=tuple(ops))


def costs_from_json(doc: Any, count: int, where: str) -> Costs:
    """Costs as another process wrote them. count : how many there should be.

    Raises
    ------
    FormatError : they are no costs, or of another number.
    """
    if not isinstance(doc, list) or len(doc) != count or not all(map(_is_cost, doc)):
        raise FormatError(
            f"{where} are no costs of the ops of this graph; use one version of Rekindle in all processes"
        )
    return [(float(s), f, w) for s, f, w in doc]


def _is_cost(x: Any) -> bool:
    if not isinstance(x, list) or len(x) != 3 or any(isinstance(y, bool) for y in x):
        return False
    seconds, *whole = x
    return isinstance(seconds, int | float) and math.isfinite(seconds) and all(isinstance(y, int) for y in whole)
