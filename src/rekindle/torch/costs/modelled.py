"""An instrument that estimates the seconds of a step on a named device, by the roofline of every operator that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..private import HigherOrderOperator, OpOverload
from ..tensors.op_tensors import Instrument, tensors_in
from . import devices
from .operator_calls import costs_nothing, flops_of, moved_bytes, roofline


def op_seconds(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, device: devices.Device) -> float:
    """Roofline seconds of one call of an operator overload; its tensors may be real or fake.

    The same figure as `node_costs` gives for a graph node with these arguments: 0 for views, for unwritten memory and for an
    operator that computes nothing (such as a query for a fake tensor's device).
    """
    if not isinstance(target, OpOverload | HigherOrderOperator) or target.namespace == "prim":
        return 0.0
    ins = {id(t): t for t in tensors_in((args, kwargs))}
    outs = tensors_in(out)
    if costs_nothing(target, ins.values(), outs):
        return 0.0
    every = [*ins.values(), *outs]
    moved = sum(map(moved_bytes, every))
    return roofline(target, flops_of(target, args, kwargs, out), moved, every, device)


class ModelledTime(Instrument):
    """Adds up the roofline seconds, on the device called `target`, of every operator that runs inside, in `total`.

    Forward and backward count, on real or fake tensors. Operators are assumed to run one after another.

    >>> with ModelledTime("h200") as time:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 5)
    >>> time.total > 0
    True

    Raises
    ------
    UsageError : no such device.
    """

    def __init__(self, target: str) -> None:
        super().__init__()
        self.device = devices.get(target)
        self.total = 0.0

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        self.total += op_seconds(func, args, kwargs, out, self.device)
